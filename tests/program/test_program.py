"""Black-box tests of the program `oscar`: exit codes, errors, and a real model answering over a 2-bit cache."""

import fcntl
import html
import json
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
from xml.etree import ElementTree

OSCAR = os.environ["OSCAR_BINARY"]
MODELS = pathlib.Path(os.environ.get("OSCAR_TEST_MODELS", "/nonexistent"))
MODEL = MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"


def run(*args, stdin=None, timeout=600, cwd=None, env=None):
    return subprocess.run([OSCAR, *map(str, args)], input=stdin, capture_output=True, text=True, timeout=timeout, cwd=cwd, env=env)


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


class ErrorCase(unittest.TestCase):
    def assert_one_line_error(self, result, code, *parts):
        self.assertEqual(result.returncode, code, result.stderr)
        lines = [line for line in result.stderr.splitlines() if "error:" in line]
        self.assertEqual(len(lines), 1, result.stderr)
        for part in parts:
            self.assertIn(part, lines[0])


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
                           (["-c", "-5"], "--ctx -5"), (["--temperature", "-1"], "temperature"), (["--top-p", "2"], "top_p"), (["-n", "-1"], "--max-tokens -1"),
                           (["--stop", ""], "--stop"), (["--seed", "-1"], "--seed"), (["--seed", "18446744073709551616"], "18446744073709551616"),
                           (["--weights", "f16"], '"f16": must be one of f32, stored'), (["--device", "gpu"], "cpu, cuda")):
            self.assert_one_line_error(run("run", "-m", "x", "-p", "hi", *args), 2, part)


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


@unittest.skipUnless(MODEL.exists(), "the default model is absent (OSCAR_TEST_MODELS)")
class DefaultModel(ErrorCase):
    """One calibrated copy of the default model for all tests."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp())
        cls.model = cls.folder / "model.gguf"
        cls.model.symlink_to(MODEL)
        cls.before = run("run", "-m", cls.model, "-p", "hi")
        cls.calibration = run("calibrate", "-m", cls.model, "--tokens", "2048", "--window", "1024")
        cls.profile = next(cls.folder.glob("*.safetensors"), None)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

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

        chat = Terminal("run", "-m", self.model, "--kv", "bf16", "--temperature", "0", "-c", "8192")
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
        self.assert_one_line_error(run("run", "-m", self.model, "-f", "/dev/zero"), 2, "/dev/zero", "not UTF-8")

    def test_eval_kl_ranks_the_methods_and_prints_the_same_as_json(self):
        text = self.folder / "text.txt"
        shutil.copy("/usr/share/common-licenses/GPL-3", text)
        args = ("eval", "kl", "-m", self.model, "--kv", "bf16,int2:balanced,int2:hadamard", "--text", text, "--window", "1024", "--windows", "1")
        result = run(*args, "--json", "-q")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        kl = {row["kv"]: row["kl_mean_nats"] for row in report["methods"]}
        self.assertEqual(kl.pop("exact (bf16)"), 0)
        self.assertAlmostEqual(kl["bf16"], 0, places=9)
        self.assertLess(kl["int2:balanced"] * 10, kl["int2:hadamard"])
        self.assertGreater(kl["int2:balanced"], 0.0005)
        self.assertEqual(report["scored_tokens"], 512)
        for row in report["methods"]:
            self.assertGreater(row["perplexity"], 1)

    def eval_json(self, *args):
        text = self.folder / "gpl.txt"
        if not text.exists():
            shutil.copy("/usr/share/common-licenses/GPL-3", text)
        result = run("eval", args[0], "-m", self.model, "--text", text, *args[1:], "--json", "-q")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

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

    def test_one_profile_option_serves_the_one_method_that_needs_it(self):
        moved = self.folder / "moved.profile"
        shutil.copy(self.profile, moved)
        args = ("--windows", "1", "--score", "8", "--window", "448")
        beside = self.eval_json("kl", "--kv", "bf16,int2:balanced", *args)
        self.assertEqual(self.eval_json("kl", "--kv", "bf16,int2:balanced", "--profile", moved, *args)["methods"], beside["methods"])
        for command, kv, parts in ((("eval", "kl"), "bf16,int2:naive", ["--profile", "none of the methods"]),
                                   (("bench",), "int2:balanced,int1:balanced", ["--profile", "METHOD=FILE"]),
                                   (("eval", "ablation"), f"int2:balanced={moved}", ["--profile", "names another"])):
            self.assert_one_line_error(run(*command, "-m", self.model, "--kv", kv, "--profile", moved), 2, *parts)

    def test_eval_error_chain_shows_each_link_and_ends_with_the_kl_of_eval_kl(self):
        args = ("--kv", "int2:hadamard,int2:balanced", "--window", "576", "--windows", "1", "--score", "64")
        report, kl = self.eval_json("error-chain", *args), self.eval_json("kl", *args)
        links = {(row["kv"], row["layer"]): row for row in report["layers"]}
        self.assertEqual(len(links), 2 * 30)
        for kv in ("int2:hadamard", "int2:balanced"):
            self.assertAlmostEqual(links[kv, 0]["key_error"], links[kv, 0]["key_codec_error"], places=6)
            self.assertGreater(links[kv, 29]["hidden_error"], 0)
        for key in ("score_error", "attention_kl_nats", "output_error", "hidden_error"):
            mean = {kv: sum(links[kv, layer][key] for layer in range(30)) for kv in ("int2:hadamard", "int2:balanced")}
            self.assertLess(mean["int2:balanced"] * 3, mean["int2:hadamard"], key)
        expected = {row["kv"]: row["kl_mean_nats"] for row in kl["methods"]}
        for row in report["methods"]:
            self.assertAlmostEqual(row["kl_mean_nats"] / expected[row["kv"]], 1, delta=0.02)
        self.assert_one_line_error(run("eval", "error-chain", "-m", self.model, "--kv", "int2:balanced", "--window", "400"), 2, "--window 400", "449")

    def test_eval_basis_shows_what_a_transform_is_for(self):
        report = self.eval_json("basis", "--kv", "int2:balanced", "--window", "512")
        mean = {(row["side"], row["basis"]): row for row in report["means"]}
        self.assertEqual([basis for side, basis in mean if side == "K"], ["raw", "U", "H", "U H", "int2:balanced"])
        self.assertLess(mean["K", "U H"]["importance_spread"], 1.5)  # flat for the rows that it was fitted on
        self.assertGreater(mean["K", "raw"]["importance_spread"], 2 * mean["K", "U H"]["importance_spread"])
        self.assertGreater(mean["K", "raw"]["energy_spread"], mean["K", "H"]["energy_spread"])
        self.assertLess(mean["K", "int2:balanced"]["error"], mean["K", "H"]["error"] / 4)
        self.assertLess(mean["V", "int2:balanced"]["error"], mean["V", "H"]["error"] * 0.8)
        self.assertEqual({(row["of"], row["basis"]) for row in report["spectra"]},
                         {(of, basis) for of in ("query", "key", "value", "output") for basis in ("raw", "int2:balanced")})
        for row in report["spectra"]:
            shares = [row[f"share_of_{1 << i}"] for i in range(6)]
            self.assertEqual(shares, sorted(shares))
            self.assertLessEqual(shares[-1], 1 + 1e-9)
        self.assert_one_line_error(run("eval", "basis", "-m", self.model, "--kv", "kivi"), 1, "kivi", "affine")

    def test_eval_ablation_changes_one_choice_at_a_time(self):
        windows = ("--window", "512", "--windows", "1", "--score", "64")
        report = self.eval_json("ablation", "--kv", "int2:balanced", "--sweep", "effort", *windows)
        self.assertEqual([(row["sweep"], row["value"]) for row in report["settings"]], [("base", "-"), ("effort", "0"), ("effort", "1")])
        self.assertGreater(report["settings"][1]["kl_to_base"], 1)
        report = self.eval_json("ablation", "--sweep", "scope", "--calibration-tokens", "512", *windows)
        self.assertEqual([(row["sweep"], row["value"]) for row in report["settings"]], [("base", "-"), ("scope", "head")])
        self.assertGreater(report["settings"][0]["kl_mean_nats"], 0.001)
        for args, parts in ((["--sweep", "fly"], ["fly", "clip-k"]), (["--kv", "int2:naive", "--sweep", "effort"], ["effort", "int2:naive"]),
                            (["--kv", "int2:naive", "--calibration-tokens", "9"], ["--calibration-tokens"]), (["--encode-effort", "1"], ["--encode-effort"])):
            self.assert_one_line_error(run("eval", "ablation", "-m", self.model, "--window", "512", "--calibration-tokens", "512", *args)
                                       if "int2:naive" not in args else run("eval", "ablation", "-m", self.model, "--window", "512", *args), 2, *parts)

    def test_eval_kl_by_length_and_by_position(self):
        args = ("--kv", "int2:balanced", "--windows", "1", "--score", "60")
        report = self.eval_json("kl", *args, "--window", "64,448", "--buckets", "3")
        self.assertEqual([(row["window_tokens"], row["kv"]) for row in report["methods"]],
                         [(64, "exact (bf16)"), (64, "int2:balanced"), (448, "exact (bf16)"), (448, "int2:balanced")])
        self.assertEqual(report["lengths"], [{"window_tokens": n, "windows": 1, "scored_tokens_per_window": 60} for n in (64, 448)])
        buckets = [row for row in report["buckets"] if row["kv"] == "int2:balanced"]
        self.assertEqual([(row["first_position"], row["last_position"]) for row in buckets],
                         [(3, 22), (23, 42), (43, 62), (387, 406), (407, 426), (427, 446)])
        for method, part in ((report["methods"][1], buckets[:3]), (report["methods"][3], buckets[3:])):
            self.assertAlmostEqual(sum(row["kl_mean_nats"] for row in part) / 3, method["kl_mean_nats"], places=9)
            product = part[0]["perplexity"] * part[1]["perplexity"] * part[2]["perplexity"]
            self.assertAlmostEqual(product ** (1 / 3), method["perplexity"], places=6)
        self.assertAlmostEqual(buckets[0]["kl_mean_nats"], 0, places=9)  # a window that the BF16 windows hold
        self.assertGreater(buckets[5]["kl_mean_nats"], 0)

    def test_eval_report_measures_once_and_draws_one_page(self):
        text, page, work = self.folder / "gpl-report.txt", self.folder / "report.html", self.folder / "report.work"
        shutil.copy("/usr/share/common-licenses/GPL-3", text)
        args = ("eval", "report", "-m", self.model, "--kv", "int2:balanced", "--text", text, "-o", page)
        result = run(*args, "--minutes", "0.02")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stderr, r"\[1/5\] KL and perplexity, prose; about [0-9:]+ left in all")
        content = page.read_text()
        ElementTree.fromstring(content)  # well-formed, also as XML
        plan = json.loads((work / "plan.json").read_text())
        self.assertEqual([step["name"] for step in plan["steps"]], ["kl_prose", "needle", "error_chain", "basis", "ablation"])
        for step in plan["steps"]:
            self.assertIn(html.escape(step["command"]), content)
            measured = json.loads((work / step["result"]).read_text())
            self.assertEqual(measured["command"], "eval " + step["arguments"][1])
        kl = {row["kv"]: row for row in json.loads((work / "kl_prose.json").read_text())["methods"]}
        for key in ("kl_mean_nats", "bits_per_element", "perplexity"):
            self.assertIn(f"<td>{kl['int2:balanced'][key]:.4g}</td>", content)
        self.assertIn(f"<td>{kl['int2:balanced']['perplexity'] / kl['exact (bf16)']['perplexity']:.4g}</td>", content)
        self.assertEqual("<svg" in content, "no matplotlib" not in result.stderr)
        self.assertEqual("has no matplotlib" in content, "no matplotlib" in result.stderr)
        page.unlink()
        again = run(*args, "--minutes", "0.02", "--python", "python3")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertNotIn("[1/5]", again.stderr)
        self.assertEqual(page.read_text(), content)
        self.assert_one_line_error(run(*args, "--minutes", "1"), 1, "plan.json", "minutes", "--work")
        self.assert_one_line_error(run(*args, "--minutes", "0.02", "--weights", "f32"), 1, "plan.json", "weights")
        for more, parts in ((("--minutes", "0"), ["--minutes 0"]), (("--minutes", "inf"), ["--minutes inf"]), (("--work", text), ["--work", "is a file"]),
                            (("-o", self.folder / "absent" / "page.html"), ["absent"]), (("-o", ""), ["-o", "empty"])):
            self.assert_one_line_error(run(*args[:-2], *(() if "-o" in more else args[-2:]), *more), 2, *parts)
        self.assert_one_line_error(run(*args, "--minutes", "0.02", "--python", "no-such-python"), 1, "no-such-python")
        folder = os.open(work, os.O_RDONLY)
        fcntl.flock(folder, fcntl.LOCK_EX)  # as another report would hold it
        self.assert_one_line_error(run(*args, "--minutes", "0.02"), 1, "another report", "--work")
        os.close(folder)
        (work / "basis.json").write_text((work / "basis.json").read_text()[:100])  # damaged: measured again
        again = run(*args, "--minutes", "0.02")
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertIn("[4/5]", again.stderr)
        for kept in "1235":
            self.assertNotIn(f"[{kept}/5]", again.stderr)
        json.loads((work / "basis.json").read_text())
        text.write_text(text.read_text() + "one line more\n")
        self.assert_one_line_error(run(*args, "--minutes", "0.02"), 1, "plan.json", "text_files", "--work")
        (work / "plan.json").write_text('{"settings": 5}')
        self.assert_one_line_error(run(*args, "--minutes", "0.02"), 1, "plan.json")

    def test_weights_in_f32_take_the_rounding_of_activations_out_of_a_comparison(self):
        kl = {}
        for weights in ("stored", "f32"):
            result = run("eval", "kl", "-m", self.model, "--kv", "q8_0", "--weights", weights, "--window", "640", "--score", "128",
                         "--windows", "1", "--json", "-q")
            self.assertEqual(result.returncode, 0, result.stderr)
            kl[weights] = json.loads(result.stdout)["methods"][1]["kl_mean_nats"]
        self.assertGreater(kl["stored"], 0.001)
        self.assertLess(kl["f32"], 0.0005)
        result = run("eval", "kl", "-m", self.model, "--weights", "f64")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--weights", result.stderr)

    def test_the_cache_of_llama_cpp_answers_and_is_refused_by_the_server(self):
        result = run("run", "-m", self.model, "--kv", "f16", "-p", "The capital of France is", "-n", "8", "-q")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(result.stdout.strip())
        self.assert_one_line_error(run("serve", "-m", self.model, "--kv", "f16", "--port", "0"), 2, "--kv f16", "bf16")

    def test_eval_refuses_windows_and_scores_that_are_not_positive(self):
        for args, part in ((["--window", "0"], "--window 0"), (["--window", "-1"], "--window -1"), (["--score", "-5"], "--score -5")):
            self.assert_one_line_error(run("eval", "ppl", "-m", self.model, "--kv", "bf16", *args), 2, part)

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

    def test_eval_refuses_a_text_that_is_too_short(self):
        text = self.folder / "short.txt"
        text.write_text("too short")
        self.assert_one_line_error(run("eval", "ppl", "-m", self.model, "--kv", "bf16", "--text", text), 2, "short.txt", "too short")

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

    def test_eval_needle_counts_codes_and_scores_generated_tasks(self):
        records = self.folder / "answers.jsonl"
        result = run("eval", "needle", "-m", self.model, "--kv", "bf16,int2:naive", "--task", "codes,niah_single_1", "--lengths", "768",
                     "--codes", "4", "--texts", "1", "--samples", "1", "--records", records, "--json", "-q")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual([(c["kv"], c["codes"]) for c in report["codes"]], [("bf16", 4), ("int2:naive", 4)])
        self.assertGreater(report["codes"][0]["code_tokens_right"], 0.6)
        answers = [json.loads(line) for line in records.read_text().splitlines()]
        self.assertEqual([a["kv"] for a in answers], ["bf16", "int2:naive"])
        self.assertEqual(answers[0]["score"], float(answers[0]["expected"][0] in answers[0]["answer"]))
        self.assertEqual([t["score_mean"] for t in report["tasks"]], [a["score"] for a in answers])
        for length in (c["prompt_tokens_mean"] for c in report["tasks"]):
            self.assertLessEqual(length, 768 - 128)

    def test_eval_needle_refuses_what_it_cannot_do(self):
        for args, code, parts in ((["--task", "fly"], 2, ["--task", "fly", "niah_single_1"]), (["--task", "qa_1"], 1, ["qa_1", "--squad"]),
                                  (["--lengths", "100"], 2, ["100", "codes"]), (["--lengths", "100000"], 2, ["--lengths 100000"]),
                                  (["--codes", "0"], 2, ["--codes 0"]), (["--seed=-3"], 2, ["--seed", "-3"]), (["--task", "cwe", "--lengths", "64"], 2, ["cwe", "64"]),
                                  (["--task", "vt", "--records", "/nonexistent/x"], 1, ["/nonexistent/x"])):
            self.assert_one_line_error(run("eval", "needle", "-m", self.model, "--kv", "bf16", *args), code, *parts)

    def test_eval_tasks_grades_records_every_answer_and_goes_on_from_them(self):
        data, records = self.folder / "code.jsonl", self.folder / "tasks.jsonl"
        item = {"prompt": "def add(a, b):\n    \"\"\"The sum of a and b.\"\"\"\n", "entry_point": "add",
                "test": "def check(f):\n    assert f(1, 2) == 3\n"}
        data.write_text("".join(json.dumps({"task_id": f"T/{i}", **item}) + "\n" for i in range(3)))
        args = ("eval", "tasks", "-m", self.model, "--suite", "humaneval", "--data", data, "--records", records, "-n", "64", "-c", "512", "--kv", "bf16", "--json", "-q")
        result = run(*args, "--limit", "2")
        if "this system does not allow" in result.stderr or "Landlock" in result.stderr:
            self.skipTest(result.stderr)
        self.assertEqual(result.returncode, 0, result.stderr)
        lines = [json.loads(line) for line in records.read_text().splitlines()]
        self.assertEqual([line.get("id") for line in lines], [None, "T/0", "T/2"])
        self.assertEqual(lines[1]["text"], lines[2]["text"])  # greedy, and the same prompt
        self.assertIn(lines[1]["correct"], (True, False))
        self.assertEqual(json.loads(result.stdout)["methods"][0]["pass_rate"], sum(line["correct"] for line in lines[1:]) / 2)
        again = run(*args)
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual([json.loads(line).get("id") for line in records.read_text().splitlines()], [None, "T/0", "T/2", "T/1"])
        self.assert_one_line_error(run(*args, "--seed", "5"), 1, "tasks.jsonl", "seed 0", "has 5")

    def test_eval_tasks_refuses_what_it_cannot_do(self):
        data = self.folder / "maths.jsonl"
        data.write_text('{"problem": "1 + 1?"}\n')
        for args, code, parts in ((["--suite", "fly", "--data", data], 2, ["--suite", "fly", "aime25"]),
                                  (["--suite", "aime25", "--data", data], 1, ["maths.jsonl", "record 1", "answer"]),
                                  (["--suite", "aime25", "--data", "/nonexistent"], 1, ["/nonexistent"]),
                                  (["--suite", "aime25", "--data", data, "--samples", "0"], 2, ["--samples 0"])):
            self.assert_one_line_error(run("eval", "tasks", "-m", self.model, "--kv", "bf16", *args), code, *parts)


if __name__ == "__main__":
    unittest.main()
