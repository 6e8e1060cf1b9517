"""Hostile requests by the thousand: bodies with anything anywhere, damaged JSON, damaged HTTP. No crash, no 5xx without a reason, and an idle server at the end.
Part of scripts/nightly; also for a program under the sanitizers.

OSCAR_BINARY=... OSCAR_TEST_MODELS=... OSCAR_HOSTILE_REQUESTS=100000 python3 hostile_nightly.py     (default 10000)
"""

import concurrent.futures
import copy
import http.client
import json
import os
import random
import re
import socket
import sys
import time
import unittest

from running_server import MODEL, SKIPPED, RunningServer

COUNT, THREADS = int(os.environ.get("OSCAR_HOSTILE_REQUESTS", "10000")), 4
SEED = int(os.environ.get("OSCAR_HOSTILE_SEED", "1"))
EXPLAINED = {503: ("queue_timeout", "too_many_connections")}
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "pattern": "x+"}, "b": {"anyOf": [{"type": "integer", "minimum": 3}, {"$ref": "#/$defs/c"}]}},
          "required": ["a"], "$defs": {"c": {"enum": [1, None, "x"]}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}
CHAT = {"model": "smol", "messages": [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}], "max_tokens": 1, "temperature": 0.5, "top_p": 0.9, "top_k": 3,
        "min_p": 0.1, "seed": 5, "stop": ["a", "b"], "logit_bias": {"5": 1}, "logprobs": True, "top_logprobs": 2, "stream": True, "stream_options": {"include_usage": True},
        "tools": [TOOL], "tool_choice": "auto", "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}, "n": 1, "oscar": {"cache": True, "stats": True, "deadline_ms": 5000},
        "chat_template_kwargs": {"enable_thinking": False}, "priority": 1, "cache_salt": "x", "stop_token_ids": [5], "min_tokens": 0, "reasoning_effort": "none", "user": "u"}
TEXT = {"prompt": "hi", "max_tokens": 1, "echo": True, "logprobs": 1, "n": 1, "repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1,
        "structured_outputs": {"regex": "(a|b)*c"}, "prompt_logprobs": 1, "return_token_ids": True}
BODIES = {"/v1/chat/completions": CHAT, "/v1/completions": TEXT, "/v1/chat/completions/render": CHAT, "/v1/completions/render": TEXT,
          "/inference/v1/generate": {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 1, "n": 1, "logprobs": 1, "structured_outputs": {"grammar": "root ::= \"a\"+"}}, "request_id": "x"},
          "/tokenize": {"prompt": "hi", "add_special_tokens": True, "return_token_strs": True}, "/detokenize": {"tokens": [1, 2, 3]}, "/abort_request": {"request_id": "x"},
          "/v1/kv/save": {"name": "x"}, "/v1/kv/restore": {"name": "x"}}
VALUES = (None, True, False, 0, 1, -1, 1.5, 1e308, -0.0, 2**31, 2**63, -2**63, 2**64, 10**30, "", "x", "\u0000", "\ud800", "<|im_end|>", "\U0001f600", "a" * 5000, [], {}, [[]], [None], {"": {}}, {"type": "x"},
          {"$ref": "#"}, {"type": "object", "properties": {"a": {"$ref": "#"}}}, "(", "(a*)*b", "root ::= root", "root ::= (\"a\" | root root)*", [1] * 300, {str(i): i for i in range(300)}, "../../etc/passwd")


def deep(rng):
    level = rng.choice((5, 63, 64, 65, 5000))
    return "[" * level + "]" * level if rng.random() < 0.5 else '{"a":' * level + "1" + "}" * level


def places(value, path=()):
    """Paths of all values inside."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, element in inner:
        yield (*path, key)
        yield from places(element, (*path, key))


def changed(rng, body):
    body = copy.deepcopy(body)
    for key in rng.sample(list(body), rng.randrange(len(body))):  # most combinations contradict themselves
        if rng.random() < 0.6:
            del body[key]
    for _ in range(rng.choice((0, 1, 1, 1, 2, 4))):
        found = list(places(body))
        if not found:
            break
        *path, last = rng.choice(found)
        at = body
        for key in path:
            at = at[key]
        way = rng.random()
        if way < 0.7:
            at[last] = copy.deepcopy(rng.choice(VALUES))
        elif way < 0.8:
            del at[last]
        elif isinstance(at, dict):
            at[rng.choice(("", "x", "type", "$ref", "not", "\u0000", "a" * 200))] = copy.deepcopy(rng.choice(VALUES))
        else:
            at.append(copy.deepcopy(rng.choice(VALUES)))
    return body


def hostile_body(rng, path):
    text = json.dumps(changed(rng, BODIES[path]))
    way = rng.random()
    if way < 0.6:
        return text.encode()
    data = bytearray(text.encode())
    if way < 0.7 and data:
        at = rng.randrange(len(data))
        data[at:at] = deep(rng).encode()
    elif way < 0.8:
        del data[rng.randrange(len(data) + 1):]
    elif way < 0.9:
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    else:
        at = rng.randrange(len(data) + 1)
        data[at:at] = rng.choice((b"NaN", b"\xff\xfe", b"1e999", b'"max_tokens": 5,', b"\x00", b"//", b"-"))
    return bytes(data)


def hostile_bytes(rng):
    """A whole request with damage in its lines."""
    body = b'{"prompt": "hi", "max_tokens": 1}'
    lines = [b"POST /v1/completions HTTP/1.1", b"Host: localhost", b"Content-Type: application/json", b"Content-Length: %d" % len(body), b"Connection: close"]
    way = rng.randrange(8)
    if way == 0:
        lines[3] = b"Content-Length: " + rng.choice((b"-1", b"99999999999999999999", b"0x10", b"5, 7", b"", b"33554433"))
    elif way == 1:
        lines.append(rng.choice((b"Transfer-Encoding: chunked", b"Content-Length: 5", b" folded", b"X" * 40000, b"Expect: 100-continue", b"Upgrade: h2c")))
    elif way == 2:
        lines[0] = rng.choice((b"GET", b"PUT", b"BREW", b"POST", b"\x16\x03\x01")) + b" " + rng.choice((b"/", b"*", b"/" + b"a" * 9000, b"/v1/../../x", b"http://x/", b"/\x00", b"/v1/models/%ff")) + b" HTTP/" + rng.choice((b"1.1", b"1.0", b"2.0", b"9"))
    elif way == 3:
        lines.extend(b"X-%d: y" % i for i in range(rng.choice((50, 150))))
    data = bytearray(b"\r\n".join(lines) + b"\r\n\r\n" + body)
    if way == 4:
        del data[rng.randrange(len(data)):]
    elif way == 5:
        for _ in range(rng.randrange(1, 9)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    elif way == 6:
        data = bytearray(bytes(rng.randrange(256) for _ in range(rng.randrange(1, 500))))
    return bytes(data)


class Hostile(unittest.TestCase):
    def check_json(self, answer, sent):
        """JSON by the letter, whole or as events."""
        def refuse(constant):
            self.fail((constant, answer[:500], sent))
        for part in [answer] if answer.startswith(b"{") else re.findall(rb"^data: (\{.*)$", answer, re.M):
            json.loads(part, parse_constant=refuse)

    def send(self, server, seed, count):
        rng = random.Random(seed)
        seen = {}
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)  # an answer as long as the context, from a program under a sanitizer
        for number in range(count):
            if rng.random() < 0.15:
                data = hostile_bytes(rng)
                with socket.create_connection(("127.0.0.1", server.port), timeout=120) as raw:
                    raw.sendall(data)
                    raw.settimeout(0.02)  # what is cut waits for more
                    try:
                        answer = raw.recv(4000)
                    except (TimeoutError, ConnectionError):
                        answer = b""
                status = int(answer.split(b" ")[1]) if answer.startswith(b"HTTP/") else 0
                answer = answer.partition(b"\r\n\r\n")[2]
            else:
                path = rng.choice(list(BODIES))
                data = hostile_body(rng, path)
                connection.request("POST", path, data, {"Content-Type": "application/json"})
                response = connection.getresponse()
                answer, status = response.read(), response.status
                self.check_json(answer, data)
                if status >= 400:
                    self.assertTrue(json.loads(answer)["error"]["message"], data)
            seen[status] = seen.get(status, 0) + 1
            explained = status < 500 or (status in EXPLAINED and json.loads(answer)["error"]["code"] in EXPLAINED[status])
            self.assertTrue(explained, (number, status, answer[:500], data[:2000]))
        connection.close()
        return seen

    def test_nothing_breaks(self):
        args = ("--kv", "int2:hadamard", "--log", "none", "-t", "1", "-c", "512", "--max-running", "4", "--kv-bytes", "300000000", "--model-id", "smol")
        with RunningServer(*args) as server:
            with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
                begin = time.monotonic()
                parts = [pool.submit(self.send, server, 1000 * SEED + i, COUNT // THREADS) for i in range(THREADS)]
                statuses = {}
                for part in parts:
                    for status, count in part.result().items():
                        statuses[status] = statuses.get(status, 0) + count
            end = time.monotonic() + 120
            while (metrics := server.metrics())["oscar_requests_running"] + metrics["oscar_requests_waiting"] + metrics["oscar_requests_preempted"] > 0:
                self.assertLess(time.monotonic(), end, "requests are left")
            self.assertEqual([metrics[f'oscar_kv_pages{{kind="{kind}",state="active"}}'] for kind in ("int2", "bf16")], [0, 0])
            print(f"G1: {COUNT} hostile requests in {end - 120 - begin:.0f} s, by status (0: none): {dict(sorted(statuses.items()))}")
            self.assertGreater(statuses.get(200, 0), COUNT / 100)  # what is hostile is near to what is not
            self.assertGreater(statuses.get(400, 0), COUNT / 10)


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: the default model is absent (OSCAR_TEST_MODELS)")
        sys.exit(SKIPPED)
    unittest.main()
