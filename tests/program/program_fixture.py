"""What the tests of the program share: the program, the default model with a profile, errors of one line."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

OSCAR = os.environ["OSCAR_BINARY"]
MODELS = pathlib.Path(os.environ.get("OSCAR_TEST_MODELS", "/nonexistent"))
MODEL = MODELS / "SmolLM2-135M-Instruct.Q4_1.gguf"


def run(*args, stdin=None, timeout=600, cwd=None, env=None):
    return subprocess.run([OSCAR, *map(str, args)], input=stdin, capture_output=True, text=True, timeout=timeout, cwd=cwd, env=env)


class ErrorCase(unittest.TestCase):
    def assert_one_line_error(self, result, code, *parts):
        self.assertEqual(result.returncode, code, result.stderr)
        lines = [line for line in result.stderr.splitlines() if "error:" in line]
        self.assertEqual(len(lines), 1, result.stderr)
        for part in parts:
            self.assertIn(part, lines[0])


@unittest.skipUnless(MODEL.exists(), "the default model is absent (OSCAR_TEST_MODELS)")
class CalibratedModel(ErrorCase):
    """One calibrated copy of the default model for all tests of a class."""

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
