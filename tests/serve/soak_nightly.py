"""The server at twice what it can take, with clients that leave at any moment: at the end no page and no memory is missing. Part of scripts/nightly.

OSCAR_BINARY=... OSCAR_TEST_MODELS=... OSCAR_SOAK_SECONDS=1800 python3 soak_nightly.py     (default 180)

With a program under the address sanitizer, whose leaks end it with an error: ASAN_OPTIONS=quarantine_size_mb=8, so that it gives back what was freed.
"""

import http.client
import json
import os
import random
import re
import socket
import sys
import tempfile
import threading
import time
import unittest

from running_server import MODEL, SKIPPED, RunningServer

SECONDS = float(os.environ.get("OSCAR_SOAK_SECONDS", "180"))
PLACES = 3
CLIENTS = 2 * (PLACES + 3)  # running and waiting requests, twice
GROWTH_BYTES = 64 << 20     # of the process, from a third of the time on: what allocators keep, and not a request's worth for each of thousands
REFUSALS = {429: ("queue_full",), 503: ("queue_timeout", "draining")}


def resident_bytes(process):
    with open(f"/proc/{process.pid}/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+) kB", status.read()).group(1)) << 10


def pages(metrics, state):
    return [metrics[f'oscar_kv_pages{{kind="{kind}",state="{state}"}}'] for kind in ("int2", "bf16")]


class Client(threading.Thread):
    """Asks until the time is over; keeps what it did not expect."""

    def __init__(self, server, seed, end):
        super().__init__()
        self.server, self.end, self.rng = server, end, random.Random(seed)
        self.errors, self.counts = [], {"whole": 0, "left": 0, "refused": 0, "aborted": 0}

    def body(self):
        rng = self.rng
        shared = [1000 + i * i % 20000 for i in range(rng.choice((70, 200, 420)))]  # documents that others ask about too
        body = {"prompt": shared + [rng.randrange(1000, 20000) for _ in range(rng.randrange(1, 150))], "max_tokens": rng.randrange(1, 60),
                "temperature": rng.choice((0, 1)), "stream": rng.random() < 0.6, "n": rng.choice((1, 1, 1, 2)), "ignore_eos": rng.random() < 0.5}
        if rng.random() < 0.15:
            body["structured_outputs"] = {"json": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}
        if rng.random() < 0.1:
            body.update(logprobs=2, echo=True)
        if rng.random() < 0.2:
            body["cache_salt"] = rng.choice("ab")
        return json.dumps(body).encode()

    def leave(self, name):
        """A request whose client goes away: before, within or behind the head of the answer, or is aborted by an administrator."""
        data = self.body()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {name}\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.server.port), timeout=300) as connection:
            whole = head.encode() + data
            connection.sendall(whole[: self.rng.randrange(len(whole))] if self.rng.random() < 0.1 else whole)
            connection.settimeout(self.rng.choice((0.01, 0.1, 1.0, 5.0)))
            try:
                for _ in range(self.rng.randrange(1, 6)):
                    if not connection.recv(400):
                        break
            except TimeoutError:
                pass
            if self.rng.random() < 0.2:
                self.server.json("POST", "/abort_request", {"request_id": name})
                self.counts["aborted"] += 1
        self.counts["left"] += 1

    def ask(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=600)
        connection.request("POST", "/v1/completions", self.body(), {"Content-Type": "application/json"})
        response = connection.getresponse()
        data = response.read()
        connection.close()
        if response.status == 200:
            self.counts["whole"] += 1
            if b'"error"' in data:
                code = re.search(rb'"code":"(\w+)"', data).group(1).decode()
                if code not in REFUSALS[503]:
                    self.errors.append(data[-500:])
        elif response.status in REFUSALS and json.loads(data)["error"]["code"] in REFUSALS[response.status]:
            self.counts["refused"] += 1
            time.sleep(min(1, float(response.headers["retry-after-ms"]) / 1000))  # as clients do
        else:
            self.errors.append((response.status, data[:500]))

    def run(self):
        number = 0
        while time.monotonic() < self.end and not self.errors:
            number += 1
            try:
                self.leave(f"c{self.ident}-{number}") if self.rng.random() < 0.4 else self.ask()
                if self.rng.random() < 0.01:
                    self.server.json("POST", "/flush_cache")
                if self.rng.random() < 0.01:
                    self.server.json("POST", "/v1/kv/save", {"name": "soak"})
                if self.rng.random() < 0.01:
                    self.server.request("POST", "/v1/kv/restore", {"name": "soak"})
            except Exception as error:  # all that is not an answer
                self.errors.append(error)


class Soak(unittest.TestCase):
    def test_pages_and_memory_are_all_there_in_the_end(self):
        with tempfile.TemporaryDirectory() as folder:
            args = ("--kv", "int2:hadamard", "-t", "1", "--recent", "64", "-c", "1024", "--kv-tokens", "1100", "--max-running", PLACES, "--max-queued-requests", "3",
                    "--queue-timeout", "20", "--admit-reserve", "1", "--swap-bytes", "2000000", "--kv-dir", folder, "--log", "none")
            with RunningServer(*args) as server:
                begin = time.monotonic()
                clients = [Client(server, seed, begin + SECONDS) for seed in range(CLIENTS)]
                for client in clients:
                    client.start()
                resident = []  # after each ninth of the time
                while len(resident) < 9:
                    time.sleep(max(0, begin + (len(resident) + 1) * SECONDS / 9 - time.monotonic()))
                    resident.append(resident_bytes(server.process))
                early = max(resident[:3])
                for client in clients:
                    client.join()
                self.assertEqual([error for client in clients for error in client.errors], [])
                end = time.monotonic() + 120
                while (metrics := server.metrics())["oscar_requests_running"] + metrics["oscar_requests_waiting"] + metrics["oscar_requests_preempted"] > 0:
                    self.assertLess(time.monotonic(), end, "requests are left")
                    time.sleep(0.1)
                self.assertEqual(pages(metrics, "active"), [0, 0])
                server.json("POST", "/flush_cache")
                while pages(server.metrics(), "cached") != [0, 0]:
                    self.assertLess(time.monotonic(), end, "pages are left")
                    time.sleep(0.1)
                late = resident_bytes(server.process)
                counts = {name: sum(client.counts[name] for client in clients) for name in clients[0].counts}
                swapped, recomputed = (metrics[f'oscar_preemptions_total{{mode="{mode}"}}'] for mode in ("swap", "recompute"))
                print(f"{SECONDS:.0f} s: {counts}, preemptions {swapped:.0f} by swap, {recomputed:.0f} by recomputation; "
                      f"{[size >> 20 for size in resident]} MiB resident in the course of time, {late >> 20} MiB at the end")
                self.assertGreater(min(counts["whole"], counts["left"], counts["refused"]), 0, counts)
                self.assertLess(late - early, GROWTH_BYTES)


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: the default model is absent (OSCAR_TEST_MODELS)")
        sys.exit(SKIPPED)
    unittest.main()
