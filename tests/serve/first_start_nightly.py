"""A first start: no profile beside the model, so the server calibrates, says how far it is, and answers in the end. Part of scripts/nightly.

OSCAR_BINARY=... OSCAR_TEST_MODELS=... python3 first_start_nightly.py
"""

import http.client
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from running_server import MODEL, OSCAR, SKIPPED

HOURS = 2


class FirstStart(unittest.TestCase):
    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        connection.request(method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        data = json.loads(response.read())
        connection.close()
        return response.status, data

    def test_it_calibrates_says_how_far_it_is_and_answers(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "model.gguf"
            model.symlink_to(MODEL)
            process = subprocess.Popen([OSCAR, "serve", "-m", str(model), "--port", "0", "-c", "2048"], stderr=subprocess.PIPE, text=True)
            try:
                self.port = int(re.search(r"127\.0\.0\.1:(\d+)/health", process.stderr.readline()).group(1))
                reader = threading.Thread(target=process.stderr.read, daemon=True)
                reader.start()
                seen, end = [], time.monotonic() + HOURS * 3600
                while True:
                    self.assertLess(time.monotonic(), end, seen[-1:])
                    self.assertIsNone(process.poll(), "it ended")
                    status, health = self.ask("GET", "/health")
                    self.assertEqual(self.ask("GET", "/live")[0], 200)
                    if status == 200:
                        break
                    self.assertEqual((status, health["status"]), (503, "loading"))
                    seen.append(health["progress"])
                    time.sleep(0.5)
                self.assertGreater(len(set(seen)), 3, seen)
                status, answer = self.ask("POST", "/v1/completions", {"prompt": "The capital of France is", "temperature": 0, "max_tokens": 8})
                self.assertEqual(status, 200, answer)
                self.assertIn("Paris", answer["choices"][0]["text"])
                print("progress that was seen:", [round(value, 2) for value in seen[:: max(1, len(seen) // 10)]])
            finally:
                process.send_signal(signal.SIGTERM)
                code = process.wait(timeout=120)
                reader.join()
                process.stderr.close()
            self.assertEqual(code, 0)
            self.assertEqual(len(list(pathlib.Path(folder).iterdir())), 2)  # the model and its profile


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: the default model is absent (OSCAR_TEST_MODELS)")
        sys.exit(SKIPPED)
    unittest.main()
