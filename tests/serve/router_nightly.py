"""Two workers behind smg, the router of SGLang and vLLM: prefixes go where they are known, and a worker that ends and comes back is seen by nobody.
Part of scripts/nightly.

OSCAR_BINARY=... OSCAR_TEST_MODELS=... python3 router_nightly.py
"""

import concurrent.futures
import http.client
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from running_server import MODEL, SKIPPED, RunningServer

GROUPS, VISITS = 12, 6         # documents that are asked about, and how often each
STREAMS, CLIENTS = int(os.environ.get("OSCAR_ROUTER_STREAMS", "80")), 4  # G12 of docs/benchmarks.md: 1000
ARGS = ("--kv", "int2:hadamard", "--log", "none", "-t", "1", "-c", "1024", "--max-running", "4", "--kv-bytes", "400000000", "--model-id", "smol", "--shutdown-timeout", "60")


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def document(number):
    words = ["sea", "ship", "wind", "harbour", "captain", "storm", "island", "rope", "sail", "light", "stone", "map"]
    return " ".join(f"{words[(i * (number + 3) + i * i) % len(words)]} {number}" for i in range(110))


class Router:
    def __init__(self, urls):
        self.port, self.log = free_port(), tempfile.TemporaryFile("w+")
        command = [str(pathlib.Path(sys.executable).parent / "smg"), "launch", "--worker-urls", *urls, "--policy", "cache_aware", "--load-monitor-interval", "3", "--host", "127.0.0.1",
                   "--port", str(self.port), "--prometheus-port", str(free_port()), "--health-check-interval-secs", "1", "--log-level", "warn"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=subprocess.STDOUT)
        end = time.monotonic() + 120
        while True:
            assert self.process.poll() is None and time.monotonic() < end, self.text()
            try:
                status, data = self.request("GET", "/v1/models")
                if status == 200 and any(model["id"] == "smol" for model in json.loads(data)["data"]):
                    break
            except OSError:
                pass
            time.sleep(0.2)

    def text(self):
        self.log.seek(0)
        return self.log.read()[-3000:]

    def request(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=200)
        connection.request(method, path, None if body is None else json.dumps(body), {} if body is None else {"Content-Type": "application/json"})
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response.status, data

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=60)


class BehindARouter(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.workers = [RunningServer(*ARGS) for _ in range(2)]
        cls.router = Router([f"http://127.0.0.1:{worker.port}" for worker in cls.workers])

    @classmethod
    def tearDownClass(cls):
        cls.router.stop()
        for worker in cls.workers:
            assert worker.stop() == 0, worker.lines

    def hits(self):
        return sum(worker.metrics()["oscar_prefix_hit_tokens_total"] for worker in self.workers)

    @staticmethod
    def visit(ask):
        for turn in range(VISITS):
            for group in range(GROUPS):
                status, data = ask("POST", "/v1/completions", {"model": "smol", "prompt": f"{document(group)}\n\nQuestion {turn}: what is", "max_tokens": 2, "temperature": 0})
                assert status == 200, data

    def test_prefixes_are_found_nearly_as_often_as_on_one_worker(self):
        before = self.hits()
        self.visit(self.router.request)
        routed = self.hits() - before
        used = [worker.metrics()["oscar_prompt_tokens_total"] for worker in self.workers]
        self.assertGreater(min(used), 0, "one worker had all of it")
        alone = self.workers[0]
        for worker in self.workers:
            worker.json("POST", "/flush_cache")
        before = self.hits()

        def ask(method, path, body):
            response, data = alone.request(method, path, body)
            return response.status, data
        self.visit(ask)
        one = self.hits() - before
        print(f"hit tokens: {routed:.0f} behind the router with {used} prompt tokens, {one:.0f} on one worker")
        self.assertGreaterEqual(routed, 0.9 * one)

    def test_a_worker_that_ends_and_comes_back_is_seen_by_nobody(self):
        failures, done = [], threading.Semaphore(0)

        def stream(number):
            body = {"model": "smol", "messages": [{"role": "user", "content": f"Say the number {number}."}], "max_tokens": 12, "temperature": 0, "stream": True}
            try:
                status, data = self.router.request("POST", "/v1/chat/completions", body)
                if status != 200 or b'"error"' in data or not data.rstrip().endswith(b"data: [DONE]"):
                    failures.append((number, status, data[-300:]))
            except Exception as error:
                failures.append((number, error))
            done.release()

        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            for number in range(STREAMS):
                pool.submit(stream, number)
            for _ in range(STREAMS // 4):
                done.acquire()
            port = self.workers[0].port
            self.assertEqual(self.workers[0].stop(), 0, self.workers[0].lines)  # what runs is finished, what comes goes elsewhere
            for _ in range(STREAMS // 4):
                done.acquire()
            self.workers[0] = RunningServer(*ARGS, port=port)
        self.assertEqual(failures, [], self.router.text())
        end, rng = time.monotonic() + 60, random.Random(1)
        while self.workers[0].metrics()["oscar_prompt_tokens_total"] == 0:  # the router sends it requests again: those that resemble none that the other worker has had
            self.assertLess(time.monotonic(), end, "the worker that came back gets nothing")
            status, data = self.router.request("POST", "/v1/completions", {"model": "smol", "prompt": "".join(rng.choice("abcdefghij") for _ in range(200)), "max_tokens": 1})
            self.assertEqual(status, 200, data)


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: the default model is absent (OSCAR_TEST_MODELS)")
        sys.exit(SKIPPED)
    unittest.main()
