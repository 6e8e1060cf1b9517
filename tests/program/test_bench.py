"""Black-box tests of `oscar bench`: cells, ceilings, the other engine, figures."""

import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest
from xml.etree import ElementTree

from program_fixture import MODEL, ErrorCase, run

# Answers as llama.cpp's step server does, at once.
PEER = """#!/bin/sh
echo "other:$4 4096"
while read first rest; do
  case $first in clear|fill) echo 0 0 ;; *) echo 0.5 0.5 ;; esac
done
"""
HAS_MATPLOTLIB = subprocess.run(["python3", "-c", "import matplotlib"], capture_output=True).returncode == 0


@unittest.skipUnless(MODEL.exists(), "the default model is absent (OSCAR_TEST_MODELS)")
class Bench(ErrorCase):
    model = MODEL

    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def test_bench_of_the_cache_alone_stands_beside_the_ceilings_of_the_machine(self):
        result = run("bench", "ceiling", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        for row in json.loads(result.stdout)["ceilings"]:
            self.assertTrue(row["median"] is None or 0 < row["min"] <= row["median"] <= row["max"], row)
        for command, contexts in (("attend", "400,700"), ("demote", "400")):
            result = run("bench", command, "-m", self.model, "--kv", "bf16,int2:naive", "--contexts", contexts, "--repeats", "3", "--json", "-q")
            self.assertEqual(result.returncode, 0, result.stderr)
            cells = json.loads(result.stdout)["cells"]
            self.assertEqual([(cell["context_tokens"], cell["kv"]) for cell in cells],
                             [(int(context), kv) for context in contexts.split(",") for kv in ("bf16", "int2:naive")])
            for cell in cells:
                self.assertTrue(0 < cell["milliseconds_min"] <= cell["milliseconds"] <= cell["milliseconds_max"], cell)
        last = {cell["kv"]: cell["bytes"] for cell in json.loads(run("bench", "attend", "-m", self.model, "--kv", "bf16,int2:naive", "--contexts", "704",
                                                                     "--repeats", "1", "--json", "-q").stdout)["cells"]}
        bf16_token, encoded_token = 30 * 3 * 2 * 64 * 2, 30 * 3 * 2 * (64 // 4 + 4)
        self.assertEqual(last["bf16"], 705 * bf16_token)
        self.assertEqual(last["int2:naive"], (64 + 256 + 1) * bf16_token + 384 * encoded_token)
        for args, part in ((["ceiling", "-t", "-1"], "--threads"), (["attend", "-m", self.model, "--kv", "bf16", "--contexts", "9,5"], "ascending"),
                           (["demote", "-m", self.model, "--kv", "bf16", "--repeats", "0"], "--repeats"), (["--batch", "2", "ceiling"], "--batch"),
                           (["attend", "-m", self.model, "--kv", "bf16", "--contexts", "99999"], "8192")):
            self.assert_one_line_error(run("bench", *args), 2, part)

    def test_bench_prints_a_cell_for_each_method_and_context(self):
        result = run("bench", "-m", self.model, "--contexts", "64,256", "--decode-tokens", "2", "--kv", "bf16,int2:hadamard", "--json", "-q")
        self.assertEqual(result.returncode, 0, result.stderr)
        cells = json.loads(result.stdout)["cells"]
        self.assertEqual([(c["context_tokens"], c["kv"]) for c in cells],
                         [(64, "bf16"), (64, "int2:hadamard"), (256, "bf16"), (256, "int2:hadamard")])
        for args, part in ((["--against-kv", "f16"], "--against"), (["--against", ""], "--against"), (["-t", "2", "--processor-time"], "--processor-time")):
            result = run("bench", "-m", self.model, *args)
            self.assertEqual(result.returncode, 2, args)
            self.assertIn(part, result.stderr)
        self.assert_one_line_error(run("bench", "-m", self.model, "--kv", "bf16", "--contexts", "64", "--against", "/nonexistent/peer"), 1, "/nonexistent/peer", "no such program")

    def test_bench_of_each_half_beside_a_peer_with_ceilings_memory_and_a_figure(self):
        peer = self.folder / "peer"
        peer.write_text(PEER)
        peer.chmod(0o755)
        figure = self.folder / "decode.svg"
        result = run("bench", "decode", "-m", self.model, "--contexts", "64,512", "--decode-tokens", "2", "--kv", "bf16,int2:naive", "--against", peer,
                     "--against-kv", "f16", *(["--plot", figure] if HAS_MATPLOTLIB else []), "--json", "-q")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual(report["command"], "bench decode")
        cells = report["cells"]
        self.assertEqual([(c["context_tokens"], c["kv"]) for c in cells], [(n, kv) for n in (64, 512) for kv in ("bf16", "int2:naive", "other:f16")])
        for cell in cells:
            self.assertTrue(0 < cell["decode_tokens_per_second_min"] <= cell["decode_tokens_per_second"] <= cell["decode_tokens_per_second_max"], cell)
            self.assertGreater(cell["resident_bytes"], 0)
        self.assertEqual(cells[-1]["decode_ratio_to_best_peer"], 1)
        self.assertLess(cells[4]["cache_bytes"], cells[3]["cache_bytes"])
        self.assertTrue(0 < cells[0]["share_of_ceiling"] and cells[2]["share_of_ceiling"] is None)
        if HAS_MATPLOTLIB:
            self.assertTrue(ElementTree.parse(figure).getroot().tag.endswith("svg"))
            self.assertIn("int2:naive", figure.read_text())
            self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["decode.svg", "peer"])
        else:
            self.assert_one_line_error(run("bench", "decode", "-m", self.model, "--kv", "bf16", "--plot", figure), 1, "--plot", "no matplotlib")
        result = run("bench", "prefill", "-m", self.model, "--contexts", "20,64", "--repeats", "2", "--kv", "bf16", "--against", peer, "--against-kv", "f16",
                     "--json", "-q")
        self.assertEqual(result.returncode, 0, result.stderr)
        cells = json.loads(result.stdout)["cells"]
        self.assertEqual([(c["context_tokens"], c["kv"]) for c in cells], [(n, kv) for n in (20, 64) for kv in ("bf16", "other:f16")])
        self.assertEqual([cells[1]["prefill_tokens_per_second"], cells[3]["prefill_tokens_per_second"]], [40, 128])
        for cell in cells:
            self.assertTrue(0 < cell["prefill_tokens_per_second_min"] <= cell["prefill_tokens_per_second_max"] and cell["share_of_ceiling"] > 0, cell)
        for args, code, part in ((["prefill", "--repeats", "0"], 2, "--repeats"), (["decode", "--contexts", "64,64"], 2, "ascending"),
                                 (["decode", "--plot", "/nonexistent/a.svg"], 1, "/nonexistent"), (["decode", "--plot", figure, "--python", "/nonexistent"], 1, "--python")):
            self.assert_one_line_error(run("bench", *args, "-m", self.model, "--kv", "bf16"), code, part)

    def test_against_llama_cpp_builds_it_in_the_cache_folder_or_says_what_is_missing(self):
        tools = self.folder / "tools"
        tools.mkdir()
        for name in ("bash", "dirname", "python3", "g++", "tar", "sha256sum", "flock"):
            (tools / name).symlink_to(shutil.which(name) or "/bin/true")
        env = {"PATH": str(tools), "XDG_CACHE_HOME": str(self.folder / "cache")}
        args = ("bench", "decode", "-m", self.model, "--contexts", "64", "--decode-tokens", "1", "--kv", "bf16", "--against", "llama.cpp", "--against-kv",
                "f16", "--json", "-q")
        result = run(*args, env=env)
        self.assert_one_line_error(result, 1, "--against llama.cpp", str(self.folder / "cache"))
        self.assertIn("cmake is needed", result.stderr)
        self.assertIn("building llama.cpp once", result.stderr)
        (folder,) = (self.folder / "cache/oscar/peers").iterdir()
        (folder / "step_server").write_text(PEER)  # as if it had been built
        (folder / "step_server").chmod(0o755)
        result = run(*args, env={**os.environ, **env, "PATH": os.environ["PATH"]})
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertNotIn("building", result.stderr)
        self.assertEqual(json.loads(result.stdout)["cells"][1]["kv"], "other:f16")


if __name__ == "__main__":
    unittest.main()
