"""`oscar pull` from outside: the program against a hub on loopback. Usage: pull_test.py PATH/oscar [unittest options]"""

import hashlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.dont_write_bytecode = True
from loopback_hub import LoopbackHub, make_certificate  # noqa: E402

PROGRAM = ""
CONTENT = random.Random(7).randbytes(400_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
PATIENCE_SECONDS = 30  # until a process is called hung


class PullTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.models = self.folder / "cache" / "oscar" / "models"

    def hub(self, **options):
        hub = LoopbackHub(CONTENT, **options)
        self.addCleanup(hub.close)
        return hub

    def start(self, *arguments):
        environment = dict(os.environ, XDG_CACHE_HOME=str(self.folder / "cache"))
        process = subprocess.Popen(
            [PROGRAM, "pull", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def finish(self, process):
        out, err = process.communicate(timeout=PATIENCE_SECONDS)
        return process.returncode, out, err

    def pull(self, *arguments):
        return self.finish(self.start(*arguments))

    def names(self):
        return sorted(path.name for path in self.models.iterdir()) if self.models.exists() else []

    def wait_for_bytes(self, num_bytes):
        """Until the part file holds so many bytes."""
        part, pause, deadline = self.models / "m.gguf.part", threading.Event(), time.monotonic() + PATIENCE_SECONDS
        while not part.exists() or part.stat().st_size < num_bytes:
            self.assertLess(time.monotonic(), deadline, "no bytes arrived")
            pause.wait(0.005)

    def test_the_file_arrives_in_the_users_cache_and_its_path_is_printed(self):
        hub = self.hub()
        code, out, err = self.pull(hub.url("/m.gguf"), "--sha256", SHA256)
        self.assertEqual((code, out), (0, f"{self.models / 'm.gguf'}\n"), err)
        self.assertEqual((self.models / "m.gguf").read_bytes(), CONTENT)
        self.assertEqual(self.names(), ["m.gguf"])
        self.assertNotIn("\r", err)  # no terminal: plain lines
        self.assertIn("100%", err)

    def test_quiet_is_quiet_and_a_second_pull_fetches_nothing(self):
        hub = self.hub()
        for _ in range(2):
            code, _, err = self.pull(hub.url("/m.gguf"), "--sha256", SHA256, "--quiet")
            self.assertEqual((code, err), (0, ""))
        self.assertEqual(len(hub.requests), 1)

    def test_a_hub_source_goes_to_the_endpoint_with_the_token(self):
        hub = self.hub()
        (self.folder / "token").write_text("secret\n", encoding="utf-8")
        code, _, err = self.pull(
            "hf:o/r/m.gguf@v2", "--endpoint", hub.url(), "--token-file", str(self.folder / "token"), "--dir", str(self.models)
        )
        self.assertEqual(code, 0, err)
        path, headers = hub.requests[0]
        self.assertEqual(path, "/o/r/resolve/v2/m.gguf")
        self.assertEqual(headers["Authorization"], "Bearer secret")

    def test_a_killed_pull_is_resumed_by_the_next(self):
        hub = self.hub()
        hub.hold_at = 150_000
        process = self.start(hub.url("/m.gguf"))
        self.wait_for_bytes(150_000)
        process.kill()
        self.finish(process)
        self.assertEqual(self.names(), ["m.gguf.part", "m.gguf.part.json"])
        hub.hold_at = None
        code, _, err = self.pull(hub.url("/m.gguf"), "--sha256", SHA256)
        self.assertEqual(code, 0, err)
        self.assertEqual(hub.requests[1][1]["Range"], "bytes=150000-")
        self.assertEqual((self.models / "m.gguf").read_bytes(), CONTENT)
        self.assertEqual(self.names(), ["m.gguf"])

    def test_an_interrupt_ends_it_with_130_and_keeps_the_part(self):
        hub = self.hub()
        hub.hold_at = 150_000
        process = self.start(hub.url("/m.gguf"), "--quiet")
        self.wait_for_bytes(150_000)
        process.send_signal(signal.SIGINT)
        code, out, err = self.finish(process)
        self.assertEqual((code, out), (130, ""))
        self.assertEqual(err.count("\n"), 1, err)
        self.assertIn("150000 bytes are kept", err)

    def test_two_pulls_at_once_do_not_harm_each_other(self):
        hub = self.hub()
        hub.hold_at = 150_000
        first = self.start(hub.url("/m.gguf"), "--sha256", SHA256)
        self.wait_for_bytes(150_000)
        code, _, err = self.pull(hub.url("/m.gguf"), "--sha256", SHA256)
        self.assertEqual(code, 1)
        self.assertIn("another pull", err)
        hub.release()
        code, _, err = self.finish(first)
        self.assertEqual(code, 0, err)
        self.assertEqual((self.models / "m.gguf").read_bytes(), CONTENT)

    def test_a_wrong_hash_fails_and_leaves_nothing(self):
        hub = self.hub()
        code, out, err = self.pull(hub.url("/m.gguf"), "--sha256", "0" * 64, "--quiet")
        self.assertEqual((code, out), (1, ""))
        self.assertIn(SHA256, err)
        self.assertEqual(self.names(), [])

    def test_wrong_command_lines_exit_with_2_and_one_line_says_why(self):
        for arguments in [("m.gguf",), ("ftp://127.0.0.1/m.gguf",), ("http://127.0.0.1/m.exe",), ("hf:o/r/../m.gguf",)]:
            code, out, err = self.pull(*arguments)
            self.assertEqual((code, out, err.count("\n")), (2, "", 1), err)

    def tls_hub(self):
        certificate = make_certificate(self.folder)
        if certificate is None:
            self.skipTest("no openssl program to make a certificate with")
        return self.hub(certificate=certificate), certificate[0]

    def test_a_certificate_that_nobody_vouches_for_is_refused(self):
        hub, certificate = self.tls_hub()
        code, _, err = self.pull(hub.url("/m.gguf"), "--quiet")
        self.assertEqual(code, 1)
        self.assertIn("certificate", err)
        self.assertEqual((hub.requests, self.names()), ([], []))
        code, _, err = self.pull(hub.url("/m.gguf"), "--ca-file", certificate, "--sha256", SHA256)
        self.assertEqual(code, 0, err)

    def test_a_certificate_of_another_host_is_refused(self):
        hub, certificate = self.tls_hub()
        code, _, err = self.pull(hub.url("/m.gguf").replace("127.0.0.1", "localhost"), "--ca-file", certificate)
        self.assertEqual(code, 1, err)
        self.assertEqual(hub.requests, [])

    def test_https_is_never_left_for_http(self):
        hub, certificate = self.tls_hub()
        plain = self.hub()
        hub.location = plain.url("/m.gguf")
        code, _, err = self.pull(hub.url("/m.gguf"), "--ca-file", certificate)
        self.assertEqual(code, 1)
        self.assertIn("redirects from https", err)
        self.assertEqual(plain.requests, [])


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
