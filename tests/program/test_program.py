"""Black-box tests of the program `oscar`: exit codes, errors, and a real model answering over a 2-bit cache."""

import os
import pathlib
import pty
import random
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

from program_fixture import MODEL, OSCAR, CalibratedModel, ErrorCase, run


class Terminal:
    """The program on a pseudo-terminal, as a person at a keyboard has it."""

    def __init__(self, *args):
        self.process, self.fd = pty.fork()
        if self.process == 0:
            os.execv(OSCAR, [OSCAR, *map(str, args)])
        self.seen = ""

    def read_until(self, pattern, timeout=300):
        """What is printed up to a match of `pattern`, the match included."""
        end = time.monotonic() + timeout
        while True:
            match = re.search(pattern, self.seen)
            if match:
                text, self.seen = self.seen[:match.end()], self.seen[match.end():]
                return text
            ready, _, _ = select.select([self.fd], [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise AssertionError(f"no {pattern!r} within {timeout} s, but {self.seen!r}")
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # the other end has closed
                data = b""
            if not data:
                raise AssertionError(f"ended without {pattern!r}: {self.seen!r}")
            self.seen += data.decode(errors="replace").replace("\r\n", "\n")

    def type(self, text):
        os.write(self.fd, text.encode())

    def exit_code(self):
        return os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1])


class CommandLine(ErrorCase):
    def test_help_lists_every_subcommand_and_exits_with_zero(self):
        result = run("--help")
        self.assertEqual(result.returncode, 0)
        for name in ("run", "calibrate", "eval", "bench", "inspect", "pull"):
            self.assertIn(name, result.stdout)

    def test_version_is_a_semantic_version(self):
        self.assertRegex(run("--version").stdout, r"^oscar \d+\.\d+\.\d+")

    def test_usage_errors_exit_with_two(self):
        for args in ([], ["fly"], ["run"], ["run", "-m"], ["run", "-m", "x", "--no-such-option"], ["eval"], ["bench", "-m", "x", "--contexts", "a"]):
            self.assert_one_line_error(run(*args, stdin=""), 2)
        self.assert_one_line_error(run("fly"), 2, "fly")

    def test_a_missing_model_is_named(self):
        self.assert_one_line_error(run("run", "-m", "no-such-model", "-p", "x"), 1, "no-such-model")

    def test_bad_values_are_refused_before_the_model_is_opened(self):
        for args, part in ((["--sink", "65"], "--sink 65"), (["--recent", "-64"], "--recent -64"), (["-t", "-1"], "--threads -1"),
                           (["-c", "-5"], "--ctx -5"), (["--temperature", "-1"], "--temperature -1"), (["--top-p", "2"], "--top-p 2"), (["-n", "-1"], "--max-tokens -1"),
                           (["--stop", ""], "--stop"), (["--seed", "-1"], "--seed"), (["--seed", "18446744073709551616"], "18446744073709551616"),
                           (["--weights", "f16"], '"f16": must be one of f32, fp8, stored'), (["--device", "gpu"], "cpu, cuda")):
            self.assert_one_line_error(run("run", "-m", "x", "-p", "hi", *args), 2, part)
        self.assert_one_line_error(run("run", "-m", "x", "-p", "hi", "--weights", "fp8"), 2, "--device cuda")


class HostileFiles(ErrorCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def write(self, name, data):
        path = self.folder / name
        path.write_bytes(data)
        return path

    def test_files_that_are_no_model_are_refused_by_name(self):
        for name, data in (("empty.gguf", b""), ("text.gguf", b"hello world, this is no model"), ("magic.gguf", b"GGUF"),
                           ("huge.gguf", b"GGUF" + (3).to_bytes(4, "little") + b"\xff" * 16)):
            self.assert_one_line_error(run("inspect", "-m", self.write(name, data)), 1, name)

    def test_a_folder_is_no_model(self):
        self.assert_one_line_error(run("inspect", "-m", self.folder), 2, str(self.folder))

    def test_files_that_are_no_profile_are_refused_by_name(self):
        for name, data in (("empty.safetensors", b""), ("text.safetensors", b"hello world"), ("long.safetensors", b"\xff" * 64)):
            self.assert_one_line_error(run("inspect", "--profile", self.write(name, data)), 1, name)


class DefaultModel(CalibratedModel):
    def test_a_calibrated_method_without_a_profile_says_how_to_make_one(self):
        self.assert_one_line_error(self.before, 1, "int2:balanced", "oscar calibrate")

    def test_calibration_prints_a_row_per_layer_and_leaves_one_file(self):
        self.assertEqual(self.calibration.returncode, 0, self.calibration.stderr)
        self.assertIn("cond T", self.calibration.stdout)
        self.assertEqual([path.name for path in self.folder.glob("*.safetensors*")], [self.profile.name])

    def test_the_2_bit_cache_answers_and_reports_what_it_holds(self):
        result = run("run", "-m", self.model, "-p", "Explain in three sentences why the sky is blue.", "--temperature", "0", "-n", "40")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("Rayleigh", result.stdout)
        self.assertIn("kv int2:balanced", result.stderr)
        self.assertIn("bits/element", result.stderr)

    def test_the_same_seed_gives_the_same_answer(self):
        args = ("run", "-m", self.model, "-p", "Tell me a story.", "-n", "40", "--seed", "7", "-q")
        first, second = run(*args), run(*args)
        self.assertEqual(first.returncode, 0, first.stderr)
        self.assertEqual(first.stdout, second.stdout)
        self.assertNotEqual(first.stdout, run(*args[:-2], "8", "-q").stdout)

    def test_an_interrupt_at_the_prompt_ends_the_chat_without_another_key(self):
        for wait in (0, 0, 0.001, 0.1):  # at once: before the program waits for a line
            chat = Terminal("run", "-m", self.model, "--kv", "bf16", "-c", "512")
            chat.read_until(r"\n> ")
            time.sleep(wait)
            os.kill(chat.process, signal.SIGINT)
            end = time.monotonic() + 60
            while not (ended := os.waitpid(chat.process, os.WNOHANG))[0]:
                self.assertLess(time.monotonic(), end, "it waits for a key")
                time.sleep(0.01)
            self.assertNotEqual(os.waitstatus_to_exitcode(ended[1]), 0)
            os.close(chat.fd)

    def test_a_chat_reuses_its_cache_stops_at_ctrl_c_resets_and_ends_at_ctrl_d(self):
        statistics = r"\[prompt (\d+) tokens \((\d+) cached\).*?ended by ([a-z ]+);"
        chat = Terminal("run", "-m", self.model, "--kv", "bf16", "--temperature", "0", "-n", "24", "-c", "2048")
        chat.read_until("\n> ")
        chat.type("What is the capital of France?\n")
        prompt, cached, ended = re.search(statistics, chat.read_until("\n> ")).groups()
        self.assertEqual((cached, ended in ("end token", "length")), ("0", True))
        chat.type("And of Italy?\n")
        second, cached, _ = re.search(statistics, chat.read_until("\n> ")).groups()
        self.assertGreaterEqual(int(cached), int(prompt))
        self.assertGreater(int(second), int(cached))
        chat.type("/reset\n")
        chat.read_until("> ")
        chat.type("What is the capital of France?\n")
        again, cached, _ = re.search(statistics, chat.read_until("\n> ")).groups()
        self.assertEqual(again, prompt)  # nothing of the earlier turns
        chat.type("\x04")
        self.assertEqual(chat.exit_code(), 0)

        chat = Terminal("run", "-m", self.model, "--kv", "bf16", "--temperature", "0", "-c", "1024")  # an answer may go on to the end of the context
        chat.read_until("\n> ")
        chat.type("Write a long story about a lighthouse keeper who finds a map.\n")
        chat.read_until("finds a map\\.\n[^>]{40}")
        chat.type("\x03")
        self.assertEqual(re.search(statistics, chat.read_until("\n> ")).group(3), "cancelled")
        chat.type("Say hello.\n")
        self.assertNotEqual(re.search(statistics, chat.read_until("\n> ")).group(3), "cancelled")
        chat.type("\x04")
        self.assertEqual(chat.exit_code(), 0)

    def test_stop_strings_end_the_answer_and_are_not_printed(self):
        result = run("run", "-m", self.model, "--raw", "-p", "1, 2, 3, 4, 5,", "--temperature", "0", "-n", "40", "--stop", "9", "-q")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("8", result.stdout)
        self.assertNotIn("9", result.stdout)

    def test_a_prompt_longer_than_the_context_is_refused(self):
        result = run("run", "-m", self.model, "-c", "128", "-p", "word " * 500)
        self.assert_one_line_error(result, 2, "context", "128")

    def test_piped_text_is_the_prompt_and_an_empty_one_is_refused(self):
        result = run("run", "-m", self.model, "--temperature", "0", "-n", "8", "-q", stdin="Say hello.")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(result.stdout.strip())
        self.assert_one_line_error(run("run", "-m", self.model, stdin=""), 2, "no prompt", "standard input")
        self.assert_one_line_error(run("run", "-m", self.model, "-p", ""), 2, "no prompt", "--prompt")
        self.assert_one_line_error(run("run", "-m", self.model, "-f", self.folder), 2, "--file", "folder")
        self.assert_one_line_error(run("run", "-m", self.model, "-f", "/dev/zero"), 2, "/dev/zero", "NUL byte")
        for name, value in (("--top-k", "-5"), ("--repetition-penalty", "0")):
            self.assert_one_line_error(run("run", "-m", self.model, "-p", "hi", name, value), 2, name)
        broken = subprocess.run([OSCAR, "run", "-m", str(self.model), "-p", "hi", "--system", b"\xff"], capture_output=True, text=True, timeout=600)
        self.assert_one_line_error(broken, 2, "--system", "UTF-8")

    def test_no_output_destroys_an_input_or_a_device(self):
        whole, records = MODEL.stat().st_size, self.folder / "records.jsonl"
        records.write_text("mine\n")
        needle = ("eval", "needle", "-m", self.model, "--kv", "bf16", "--lengths", "700", "--texts", "1", "--codes", "2", "-q", "--records")
        self.assert_one_line_error(run(*needle, self.model), 2, "--records", "also read")
        self.assert_one_line_error(run(*needle, records), 2, "--records", "exists")
        self.assert_one_line_error(run("calibrate", "-m", self.model, "-o", self.model), 2, "-o", "also read")
        self.assert_one_line_error(run("calibrate", "-m", self.model, "-o", "/dev/full"), 2, "/dev/full", "regular")
        self.assert_one_line_error(run("rotations", "export", "--profile", self.profile, "--rotation-k", self.profile, "--rotation-v", self.folder / "v.pt"), 1)
        self.assertEqual((MODEL.stat().st_size, records.read_text()), (whole, "mine\n"))
        self.assertFalse(pathlib.Path("/dev/full").is_file())

    def test_output_that_cannot_be_written_is_an_error_of_every_command(self):
        for args in (("inspect", "-m", self.model), ("inspect", "--profile", self.profile), ("--help",)):
            with open("/dev/full", "w") as full:
                result = subprocess.run([OSCAR, *map(str, args)], stdout=full, stderr=subprocess.PIPE, text=True, timeout=600)
            self.assertEqual(result.returncode, 1, args)
            self.assertIn("standard output", result.stderr)

    def test_lists_with_empty_items_are_refused(self):
        for args, option in ((("eval", "kl", "-m", self.model, "--window", "576,,640"), "--window"), (("bench", "-m", self.model, "--kv", "bf16,"), "--kv"),
                             (("inspect", "-m", self.model, "--kv", "bf16", "--tokens=,5"), "--tokens"), (("eval", "kl", "-m", self.model, "--window", ""), "--window")):
            self.assert_one_line_error(run(*args), 2, option, "empty item")
        for args, part in ((("bench", "-m", self.model, "--kv", "bf16", "--contexts", "-4"), "--contexts -4"),
                           (("inspect", "-m", self.model, "--kv", "bf16", "--tokens", "2147483647"), "--tokens 2147483647"),
                           (("eval", "kl", "-m", self.model, "--kv", "int2:balanced="), "int2:balanced="),
                           (("calibrate", "-m", self.model, "--kv", "int2:oscar", "--levels", "uniform", "--lloyd-ratio", "1.1"), "--lloyd-ratio")):
            self.assert_one_line_error(run(*args), 2, part)

    def test_the_cache_of_llama_cpp_answers_and_is_refused_by_the_server(self):
        result = run("run", "-m", self.model, "--kv", "f16", "-p", "The capital of France is", "-n", "8", "-q")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(result.stdout.strip())
        self.assert_one_line_error(run("serve", "-m", self.model, "--kv", "f16", "--port", "0"), 2, "--kv f16", "bf16")

    def test_calibrate_refuses_what_it_could_not_finish_before_it_begins(self):
        self.assert_one_line_error(run("calibrate", "-m", self.model, "--tokens", "1"), 2, "--tokens 1")
        self.assert_one_line_error(run("calibrate", "-m", self.model, "--window", "63"), 2, "--window 63", "64")
        self.assert_one_line_error(run("calibrate", "-m", self.model, "-o", self.folder), 2, str(self.folder))
        self.assert_one_line_error(run("calibrate", "-m", self.model, "-o", "/nonexistent/p"), 1, "/nonexistent")

    def test_the_other_calibrated_methods_are_fitted_inspected_and_run(self):
        for method, column in (("int2:oscar", "diag R'CR"), ("int1:balanced", "cond T")):
            profile = self.folder / (method.replace(":", "-") + ".profile")
            result = run("calibrate", "-m", self.model, "--kv", method, "--tokens", "512", "--window", "512", "-o", profile)
            self.assertEqual(result.returncode, 0, result.stderr)
            result = run("inspect", "--profile", profile)
            self.assertIn(method, result.stdout)
            self.assertIn(column, result.stdout)
            result = run("run", "-m", self.model, "--kv", method, "--profile", profile, "-p", "hi", "-n", "4")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assert_one_line_error(run("run", "-m", self.model, "--profile", profile, "-p", "hi"), 1, method, "int2:balanced")

    def test_options_of_one_method_are_refused_for_another(self):
        self.assert_one_line_error(run("calibrate", "-m", self.model, "--clip-k", "0.9"), 2, "--clip-k", "int2:oscar")
        self.assert_one_line_error(run("calibrate", "-m", self.model, "--kv", "int2:naive"), 1, "int2:naive", "int2:balanced")
        self.assert_one_line_error(run("run", "-m", self.model, "--kv", "bf16", "--encode-effort", "1", "-p", "hi"), 2, "--encode-effort")
        self.assert_one_line_error(run("run", "-m", self.model, "--encode-effort", "3", "-p", "hi"), 2, "--encode-effort 3")

    def test_an_answer_that_cannot_be_written_is_an_error(self):
        with open("/dev/full", "w") as full:
            result = subprocess.run([OSCAR, "run", "-m", self.model, "--kv", "bf16", "-p", "hi", "-n", "4"], stdout=full,
                                    stderr=subprocess.PIPE, text=True, timeout=600)
        self.assertEqual(result.returncode, 1)
        self.assertIn("standard output", result.stderr)

    def test_inspect_refuses_options_that_it_would_ignore(self):
        self.assert_one_line_error(run("inspect", "--kv", "bf16"), 2, "--kv")
        self.assert_one_line_error(run("inspect", "--profile", self.profile, "-m", self.model), 2, "--profile")

    def test_a_truncated_or_damaged_profile_is_refused(self):
        data = self.profile.read_bytes()
        broken = self.folder / "broken.profile"
        rng = random.Random(5)
        for size in (0, 7, 100, len(data) // 2, len(data) - 1):
            broken.write_bytes(data[:size])
            self.assert_one_line_error(run("run", "-m", self.model, "-p", "x", "--profile", broken), 1, "broken.profile")
        for _ in range(4):
            changed = bytearray(data)
            changed[rng.randrange(8, 600)] ^= 0x15
            broken.write_bytes(changed)
            result = run("run", "-m", self.model, "-p", "x", "-n", "1", "--profile", broken)
            self.assertIn(result.returncode, (0, 1), result.stderr)  # a flipped letter of a comment field may be harmless

    def test_a_truncated_model_is_refused(self):
        broken = self.folder / "broken.gguf"
        data = MODEL.read_bytes()
        for size in (100, 5000, 500_000, 5_000_000, len(data) - 1):
            broken.write_bytes(data[:size])
            self.assert_one_line_error(run("run", "-m", broken, "-p", "x", "--kv", "bf16"), 1, "broken.gguf")

    def test_a_profile_given_to_a_method_without_one_is_refused(self):
        result = run("run", "-m", self.model, "-p", "x", "--kv", "int2:naive", "--profile", self.profile)
        self.assert_one_line_error(result, 2, "int2:naive", "takes no profile")

    def test_an_interrupted_calibration_leaves_no_file(self):
        target = self.folder / "interrupted.safetensors"
        process = subprocess.Popen([OSCAR, "calibrate", "-m", self.model, "-o", target, "--tokens", "4096"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        # Until its first progress line the process may not have its handler yet.
        process.stderr.read(1)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        self.assertEqual(process.returncode, 130)
        self.assertEqual(list(self.folder.glob("interrupted*")), [])

    def test_inspect_shows_model_profile_and_ledger(self):
        result = run("inspect", "-m", self.model)
        self.assertIn("head_dim 64", result.stdout)
        result = run("inspect", "--profile", self.profile)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("int2:balanced", result.stdout)
        self.assertIn("turns with RoPE: 32 pairs", result.stdout)
        result = run("inspect", "-m", self.model, "--kv", "int2:balanced", "--tokens", "131072")
        self.assertIn("2.500", result.stdout)  # 2 + 32/64 bits per encoded element


if __name__ == "__main__":
    unittest.main()
