"""Black-box tests of `oscar eval`: its tables, its pages, and what it refuses."""

import fcntl
import html
import json
import os
import shutil
import unittest
from xml.etree import ElementTree

from program_fixture import CalibratedModel, run


class Eval(CalibratedModel):
    def eval_json(self, *args):
        text = self.folder / "gpl.txt"
        if not text.exists():
            shutil.copy("/usr/share/common-licenses/GPL-3", text)
        result = run("eval", args[0], "-m", self.model, "--text", text, *args[1:], "--json", "-q")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

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

    def test_a_report_answers_a_task_suite_and_takes_profiles_by_name(self):
        data, page, work = self.folder / "one.jsonl", self.folder / "suite.html", self.folder / "suite.work"
        profile = shutil.copy(self.profile, self.folder / "named.profile")
        data.write_text(json.dumps({"task_id": "own/0", "prompt": "def add(a, b):\n    \"\"\"Return the sum of a and b.\"\"\"\n", "entry_point": "add",
                                    "canonical_solution": "    return a + b\n", "test": "def check(candidate):\n    assert candidate(2, 3) == 5\n"}) + "\n")
        args = ("eval", "report", "-m", self.model, "--kv", f"int2:balanced={profile}", "--minutes", "0.02", "-o", page)
        result = run(*args, "--window", "640", "--suite", "humaneval", "--data", data)
        self.assertEqual(result.returncode, 0, result.stderr)
        plan = json.loads((work / "plan.json").read_text())
        self.assertEqual([step["name"] for step in plan["steps"]], ["kl_prose", "needle", "tasks", "error_chain", "basis", "ablation"])
        self.assertIn(f"int2:balanced={profile}", plan["steps"][0]["command"])
        self.assertEqual({row["window_tokens"] for row in json.loads((work / "kl_prose.json").read_text())["methods"]}, {640})
        answered = json.loads((work / "tasks.json").read_text())
        self.assertEqual([(row["kv"], row["answers"]) for row in answered["methods"]], [("bf16", 1), ("int2:balanced", 1)])
        self.assertEqual(len((work / "tasks.jsonl").read_text().splitlines()), 3)  # the settings, and an answer each
        self.assertIn("Answers to humaneval", page.read_text())
        self.assert_one_line_error(run(*args, "--suite", "humaneval"), 2, "--suite", "--data")
        profile.write_bytes(profile.read_bytes() + b" ")
        self.assert_one_line_error(run(*args, "--window", "640", "--suite", "humaneval", "--data", data), 1, "plan.json", "profile_files", "--work")
        self.assert_one_line_error(run(*args, "--work", self.folder / "other", "--suite", "humaneval", "--data", self.folder / "absent.jsonl"), 1, "absent.jsonl")
        self.assert_one_line_error(run(*args, "--work", self.folder / "other", "--window", "100"), 2, "--window 100")
        self.assertFalse((self.folder / "other").exists())

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

    def test_eval_refuses_windows_and_scores_that_are_not_positive(self):
        for args, part in ((["--window", "0"], "--window 0"), (["--window", "-1"], "--window -1"), (["--score", "-5"], "--score -5")):
            self.assert_one_line_error(run("eval", "ppl", "-m", self.model, "--kv", "bf16", *args), 2, part)

    def test_eval_refuses_a_text_that_is_too_short(self):
        text = self.folder / "short.txt"
        text.write_text("too short")
        self.assert_one_line_error(run("eval", "ppl", "-m", self.model, "--kv", "bf16", "--text", text), 2, "short.txt", "too short")

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
