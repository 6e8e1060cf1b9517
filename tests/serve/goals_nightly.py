"""What the server promises above its peers (docs/benchmarks.md), as far as a short run with the default model shows it. Part of scripts/nightly.

OSCAR_BINARY=... OSCAR_TEST_MODELS=... python3 goals_nightly.py
"""

import json
import re
import socket
import sys
import time
import unittest

from running_server import MODEL, SKIPPED, RunningServer

KV = ("--kv", "int2:hadamard", "--log", "none")


def tokens_of(count, seed):
    return [1000 + (seed * 7919 + i * i * 31 + i * 17) % 20000 for i in range(count)]


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def resident_bytes(process):
    with open(f"/proc/{process.pid}/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+) kB", status.read()).group(1)) << 10


def post(body, path="/v1/completions", fields=""):
    text = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text


class Goals(unittest.TestCase):
    def test_g4_and_g17_a_thousand_streams_wait_and_health_answers(self):
        count = 1000
        args = ("-c", "512", "--max-running", "1", "--max-queued-requests", str(2 * count), "--max-queued-tokens", "1000000", "--queue-timeout", "0", "--max-connections-per-ip", "0")
        with RunningServer(*KV, *args, "--kv-bytes", "300000000") as server:
            busy = server.open_stream({"prompt": tokens_of(20, 1), "max_tokens": 480, "ignore_eos": True})
            before = resident_bytes(server.process)
            streams = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(count)]
            for stream in streams:
                stream.sendall(post({"prompt": [1000], "max_tokens": 1, "stream": True, "priority": 5}))
            while server.metrics()["oscar_requests_waiting"] < count - 400:  # some may have had their token already
                time.sleep(0.05)
            held = resident_bytes(server.process) - before
            waiting = server.metrics()["oscar_requests_waiting"]
            seconds = []
            for _ in range(300):
                begin = time.perf_counter()
                self.assertEqual(server.request("GET", "/health")[0].status, 200)
                seconds.append(time.perf_counter() - begin)
            for stream in [busy, *streams]:
                stream.close()
            print(f"G4: /health with {waiting:.0f} waiting streams and one that answers, new connections: median {1000 * percentile(seconds, 0.5):.2f} ms, "
                  f"p99 {1000 * percentile(seconds, 0.99):.2f} ms")
            print(f"G17: {held / 1024 / count:.1f} KiB a waiting stream, connection included")
            self.assertLess(held / count, 64 * 1024)


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: the default model is absent (OSCAR_TEST_MODELS)")
        sys.exit(SKIPPED)
    unittest.main()
