"""`oscar serve` as its users have it: the official OpenAI client, plain sockets with bad requests, many clients at once."""

import concurrent.futures
import http.client
import json
import math
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from serve_fixture import MODEL, OSCAR, SKIPPED, Server, chat

class Serving(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--kv", "int2:hadamard", "-c", "1024", "--max-running", "4", "--model-id", "smol", "--max-queued-requests", "2",
                            "--max-body-bytes", "100000", "--queue-timeout", "0")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, cls.server.lines

    def healthy(self):
        response, data = self.server.request("GET", "/health")
        self.assertEqual((response.status, json.loads(data)["status"]), (200, "ok"))

    def test_the_official_client_chats_streams_and_lists_models(self):
        from openai import OpenAI

        client = OpenAI(base_url=f"http://127.0.0.1:{self.server.port}/v1", api_key="none", max_retries=0, timeout=300)
        self.assertEqual([model.id for model in client.models.list()], ["smol"])
        question = dict(model="smol", messages=[{"role": "user", "content": "What is the capital of France?"}], temperature=0, max_tokens=24)
        whole = client.chat.completions.create(**question)
        self.assertTrue(whole.choices[0].message.content)
        self.assertIn(whole.choices[0].finish_reason, ("stop", "length"))
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
        chunks = list(client.chat.completions.create(**question, stream=True, stream_options={"include_usage": True}))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        self.assertEqual(text, whole.choices[0].message.content)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual(chunks[-2].choices[0].finish_reason, whole.choices[0].finish_reason)
        self.assertEqual((chunks[-1].choices, chunks[-1].usage.completion_tokens), ([], whole.usage.completion_tokens))
        completion = client.completions.create(model="smol", prompt="1, 2, 3, 4,", temperature=0, max_tokens=6)
        self.assertIn("5", completion.choices[0].text)

    def test_the_next_turn_computes_only_what_is_new(self):
        first = "Tell me about the sea. " * 12
        response, data = self.server.request("POST", "/v1/chat/completions", chat(first, max_tokens=8))
        answer = json.loads(data)
        self.assertEqual(response.status, 200, data)
        turn = chat(first, answer["choices"][0]["message"]["content"], "And the sky?", max_tokens=4)
        second = json.loads(self.server.request("POST", "/v1/chat/completions", turn)[1])
        self.assertGreaterEqual(second["usage"]["prompt_tokens_details"]["cached_tokens"], answer["usage"]["prompt_tokens"] - 1)

    def test_answers_in_a_batch_are_those_of_one_alone(self):
        questions = [f"Name {n} animals." for n in ("two", "three", "four", "five")]
        ask = lambda question: json.loads(self.server.request("POST", "/v1/chat/completions", chat(question, max_tokens=16))[1])
        alone = [ask(question)["choices"][0]["message"]["content"] for question in questions]
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            together = [answer["choices"][0]["message"]["content"] for answer in pool.map(ask, questions)]
        # Sums in another order may move a close call: the beginnings agree.
        self.assertEqual([text[:8] for text in together], [text[:8] for text in alone])

    def test_choices_of_one_call_have_seeds_of_their_own(self):
        body = chat("Tell me a story.", n=3, max_tokens=12, seed=5)
        body["temperature"] = 1.2
        one, two = (json.loads(self.server.request("POST", "/v1/chat/completions", body)[1]) for _ in range(2))
        texts = [choice["message"]["content"] for choice in one["choices"]]
        self.assertEqual([choice["index"] for choice in one["choices"]], [0, 1, 2])
        self.assertGreater(len(set(texts)), 1)
        self.assertEqual(texts[0][:4], two["choices"][0]["message"]["content"][:4])

    def test_log_probabilities_of_a_chat_cover_its_text_whole_and_streamed(self):
        body = chat("Name three colours.", max_tokens=12, logprobs=True, top_logprobs=3)
        whole = json.loads(self.server.request("POST", "/v1/chat/completions", body)[1])["choices"][0]
        entries = whole["logprobs"]["content"]
        self.assertEqual(b"".join(bytes(entry["bytes"]) for entry in entries).decode(), whole["message"]["content"])
        for entry in entries:
            self.assertEqual(entry["top_logprobs"][0]["token"], entry["token"])  # greedy
            self.assertEqual(entry["top_logprobs"][0]["logprob"], entry["logprob"])
            self.assertEqual(len(entry["top_logprobs"]), 3)
            self.assertLess(sum(math.exp(top["logprob"]) for top in entry["top_logprobs"]), 1.000001)
        _, data = self.server.request("POST", "/v1/chat/completions", {**body, "stream": True})
        events = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: {")]
        streamed = [entry["token"] for event in events for entry in (event["choices"][0]["logprobs"] or {"content": []})["content"]]
        self.assertEqual(streamed, [entry["token"] for entry in entries])

    def test_echo_scores_a_prompt_as_its_tokens_come_one_by_one(self):
        prompt = "The capital of France is Paris, and that of Italy is Rome é."
        tokens = json.loads(self.server.request("POST", "/tokenize", {"prompt": prompt})[1])["tokens"]
        self.assertEqual(json.loads(self.server.request("POST", "/detokenize", {"tokens": tokens})[1])["prompt"], prompt)
        body = {"prompt": tokens, "echo": True, "logprobs": 1, "max_tokens": 0, "temperature": 0}
        choice = json.loads(self.server.request("POST", "/v1/completions", body)[1])["choices"][0]
        scores = choice["logprobs"]
        self.assertEqual(choice["text"], prompt)
        self.assertEqual({len(values) for values in scores.values()}, {len(tokens)})
        self.assertIsNone(scores["token_logprobs"][0])
        self.assertEqual([prompt[offset:offset + 1] for offset in scores["text_offset"][:4]], ["T", " ", " ", " "])
        for position in range(1, len(tokens), 3):
            one = {"prompt": tokens[:position], "logprobs": 20, "max_tokens": 1, "temperature": 0}
            top = json.loads(self.server.request("POST", "/v1/completions", one)[1])["choices"][0]["logprobs"]["top_logprobs"][0]
            text = scores["tokens"][position]
            if text in top:
                self.assertAlmostEqual(top[text], scores["token_logprobs"][position], delta=0.1)
            best = max(scores["top_logprobs"][position].values())
            self.assertAlmostEqual(max(top.values()), best, delta=0.1)
        body = {"prompt": prompt, "echo": True, "logprobs": 0, "max_tokens": 3, "temperature": 0}
        choice = json.loads(self.server.request("POST", "/v1/completions", body)[1])["choices"][0]
        self.assertTrue(choice["text"].startswith(prompt))
        self.assertEqual(len(choice["logprobs"]["tokens"]), len(tokens) + 3)
        info = json.loads(self.server.request("GET", "/tokenizer_info")[1])
        self.assertIn("<|im_start|>", info["chat_template"])

    def test_stop_strings_end_the_text_before_them(self):
        data = json.loads(self.server.request("POST", "/v1/completions", {"prompt": "1, 2, 3, 4, 5,", "temperature": 0, "max_tokens": 30, "stop": ["9"]})[1])
        self.assertEqual(data["choices"][0]["finish_reason"], "stop")
        self.assertNotIn("9", data["choices"][0]["text"])
        self.assertIn("8", data["choices"][0]["text"])

    def test_bad_requests_name_the_parameter(self):
        good = chat("hi", max_tokens=2)
        cases = (("{", "invalid_json", None), ("[]", "invalid_type", None), ({"messages": []}, "invalid_value", "messages"),
                 ({}, "missing_required_parameter", "messages"), ({**good, "temperature": "1"}, "invalid_type", "temperature"),
                 ({**good, "temperature": 3}, "invalid_value", "temperature"), ({**good, "n": 99}, "invalid_value", "n"),
                 ({**good, "max_tokens": 1.5}, "invalid_type", "max_tokens"), ({**good, "max_tokens": True}, "invalid_type", "max_tokens"),
                 ({**good, "stop": [""]}, "invalid_value", "stop"), ({**good, "seed": 2**70}, "invalid_value", "seed"),
                 ({"messages": [{"role": "king", "content": "x"}]}, "invalid_value", "messages[0].role"),
                 ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
                 ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "unsupported_content", "messages[0].content[0]"),
                 ({**good, "top_logprobs": 2}, "invalid_value", "top_logprobs"), ({**good, "logprobs": 3}, "invalid_type", "logprobs"),
                 ({**good, "functions": [{"name": "f"}]}, "unsupported_parameter", "functions"), ({**good, "audio": {}}, "unsupported_parameter", "audio"),
                 ({**good, "logit_bias": {"x": 1}}, "invalid_value", "logit_bias"), ({**good, "logit_bias": {"1": 101}}, "invalid_value", "logit_bias"),
                 ({**good, "stop_token_ids": [-1]}, "invalid_value", "stop_token_ids"), ({**good, "min_tokens": 3}, "invalid_value", "min_tokens"),
                 ({**good, "messages": [{"role": "tool", "content": "x"}]}, "missing_required_parameter", "messages[0].tool_call_id"),
                 ('{"messages": ' + "[" * 70 + "]" * 70 + "}", "invalid_json", None),
                 ({**good, "stream_options": {}}, "stream_options_requires_stream", "stream_options"),
                 (chat("word " * 2000), "context_length_exceeded", "messages"), ({**good, "max_tokens": 5000}, "context_length_exceeded", "messages"),
                 ('{"messages": [], "messages": []}', "invalid_json", None), (b"\xff\xfe", "invalid_json", None))
        for body, code, param in cases:
            status, error = self.server.error("/v1/chat/completions", body)
            self.assertEqual((status, error["code"], error["param"], error["type"]), (400, code, param, "invalid_request_error"), (body, error))
        status, error = self.server.error("/v1/chat/completions", {**good, "model": "other"})
        self.assertEqual((status, error["code"]), (404, "model_not_found"))
        for prompt in ([], [[1, 2], []], ["a", 2], [-1], [10**6], 7, [[]], ["a"] * 65):
            status, error = self.server.error("/v1/completions", {"prompt": prompt})
            self.assertEqual((status, error["param"]), (400, "prompt"), prompt)
        self.healthy()

    def test_a_prompt_is_rendered_as_the_route_itself_takes_it(self):
        question = chat("What is the capital of France?", max_tokens=9, seed=7, stop=["x"], n=2)
        rendered = self.server.json("POST", "/v1/chat/completions/render", question)
        answer = self.server.json("POST", "/v1/chat/completions", {**question, "return_token_ids": True})
        self.assertEqual(rendered["token_ids"], answer["prompt_token_ids"])
        sampling = rendered["sampling_params"]
        self.assertEqual([sampling[name] for name in ("temperature", "max_tokens", "seed", "stop", "n")], [0, 9, 7, ["x"], 2])
        several = self.server.json("POST", "/v1/completions/render", {"prompt": [[5, 6, 7], [8, 9]], "max_tokens": 3})
        self.assertEqual([prompt["token_ids"] for prompt in several], [[5, 6, 7], [8, 9]])
        self.assertEqual(self.server.error("/v1/chat/completions/render", {"messages": []})[0], 400)

    def test_what_is_rendered_gives_the_same_tokens_from_ids_alone(self):
        schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}, "required": ["a", "b"]}
        chats = [chat("Name a city.", max_tokens=8, seed=3, n=2) | {"temperature": 1}, chat("Say x.", max_tokens=20, stop=["e"], min_tokens=2),
                 chat("An object.", max_tokens=40, response_format={"type": "json_schema", "json_schema": {"name": "o", "schema": schema}}),
                 chat("An object.", max_tokens=10, response_format={"type": "json_object"})]
        texts = [{"prompt": ["The sea", "A ship"], "max_tokens": 3, "n": 2, "temperature": 1, "seed": 11}, {"prompt": "1 2 3", "max_tokens": 4, "logprobs": 2, "temperature": 0},
                 {"prompt": "Yes or no? ", "max_tokens": 4, "temperature": 0, "structured_outputs": {"choice": ["yes", "no"]}}]
        # Sums of a step depend on what else is in it, and draws from a flat distribution on their last bits.
        with Server("--kv", "int2:hadamard", "-c", "1024", "--model-id", "smol", "--deterministic", "--log", "none") as server:
            for path, bodies in (("/v1/chat/completions", chats), ("/v1/completions", texts)):
                for body in bodies:
                    expected = [choice["token_ids"] for choice in server.json("POST", path, {**body, "return_token_ids": True})["choices"]]
                    rendered = server.json("POST", path + "/render", body)
                    got = []
                    for prompt in rendered if isinstance(rendered, list) else [rendered]:
                        got += [choice["token_ids"] for choice in server.json("POST", "/inference/v1/generate", prompt)["choices"]]
                    self.assertEqual(got, expected, body)

    def test_generate_takes_and_gives_token_ids(self):
        body = {"token_ids": [504, 6330, 314], "sampling_params": {"temperature": 0, "max_tokens": 5, "logprobs": 1, "prompt_logprobs": 1, "ignore_eos": True}, "request_id": "mine"}
        answer = self.server.json("POST", "/inference/v1/generate", body)
        [choice] = answer["choices"]
        self.assertEqual((answer["request_id"], choice["index"], choice["finish_reason"], len(choice["token_ids"])), ("mine", 0, "length", 5))
        self.assertEqual((len(choice["logprobs"]["content"]), len(choice["logprobs"]["content"][0]["top_logprobs"])), (5, 1))
        self.assertEqual((len(answer["prompt_logprobs"]), answer["prompt_logprobs"][0]), (3, None))
        self.assertEqual((answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]), (3, 5))
        stream = {**body, "stream": True, "stream_options": {"include_usage": True}}
        events = [json.loads(line[6:]) for line in self.server.request("POST", "/inference/v1/generate", stream)[1].decode().split("\n\n") if line.startswith("data: {")]
        self.assertEqual([token for event in events for one in event["choices"] for token in one["token_ids"]], choice["token_ids"])
        self.assertEqual(events[-1]["usage"]["completion_tokens"], 5)
        for more, param in (({"token_ids": []}, "token_ids"), ({"token_ids": [-1]}, "token_ids"), ({"token_ids": "hi"}, "token_ids"), ({"sampling_params": 5}, "sampling_params"),
                            ({"sampling_params": {"temperature": 9}}, "sampling_params.temperature"), ({"sampling_params": {"max_tokens": 10**6}}, "token_ids"),
                            ({"request_id": "a b"}, "request_id"), ({"sampling_params": {"structured_outputs": {"regex": "("}}}, "sampling_params.structured_outputs.regex")):
            status, error = self.server.error("/inference/v1/generate", {"token_ids": [504], **more})
            self.assertEqual((status, error["param"]), (400, param), (more, error))
        self.healthy()

    def test_health_generate_runs_a_token(self):
        self.assertEqual(self.server.json("GET", "/health_generate"), {"status": "ok"})

    def test_only_what_names_requests_aborts(self):
        for body in ({}, {"request_id": None}, {"request_id": ""}, {"rid": 5}, {"abort_all": False}, {"abort_all": "yes"}, []):
            self.assertEqual(self.server.error("/abort_request", body)[0], 400, body)
        self.assertEqual(self.server.json("POST", "/abort_request", {"rid": "nobody"}), {"aborted": 0})

    def test_unknown_fields_are_named_in_the_answer(self):
        response, _ = self.server.request("POST", "/v1/chat/completions", chat("hi", max_tokens=1, user="me", fly=True, beams=3, oscar={"cache": True, "warp": 1}))
        self.assertEqual(response.status, 200)
        self.assertEqual(set(response.headers["x-oscar-ignored-fields"].split(", ")), {"fly", "beams", "oscar.warp"})

    def test_routes_methods_and_media_types(self):
        for method, path, status in (("GET", "/nowhere", 404), ("GET", "/v1/chat/completions", 405), ("POST", "/v1/models", 405), ("GET", "/v1/models/other", 404),
                                     ("GET", "/v1/models/smol", 200), ("HEAD", "/health", 200), ("GET", "/version", 200), ("GET", "/live", 200)):
            response, data = self.server.request(method, path)
            self.assertEqual(response.status, status, path)
            if status == 405:
                self.assertIn(response.headers["Allow"], ("GET, HEAD, OPTIONS", "POST, OPTIONS"))
            if status >= 400:
                self.assertIn("message", json.loads(data)["error"])
        response, _ = self.server.request("POST", "/v1/chat/completions", "{}", {"Content-Type": "text/plain"})
        self.assertEqual(response.status, 415)
        response, _ = self.server.request("GET", "/health", fields={"X-Request-Id": "my-id.1"})
        self.assertEqual(response.headers["x-request-id"], "my-id.1")
        response, _ = self.server.request("GET", "/v1/models", fields={"Host": "evil.example"})
        self.assertEqual(response.status, 403)

    def test_bytes_that_are_no_http_end_the_connection_and_nothing_else(self):
        post = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        for data, status in ((b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 hello\r\n\r\n", b" 400 "), (b"GET / HTTP/9.9\r\n\r\n", b" 400 "),
                             (b"GET /" + b"a" * 9000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n", b" 414 "),
                             (b"GET / HTTP/1.1\r\n" + b"X-A: " + b"b" * 40000 + b"\r\n\r\n", b" 431 "),
                             (b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"".join(b"X-%d: y\r\n" % i for i in range(150)) + b"\r\n", b" 431 "),
                             (post + b"Content-Length: 99999999\r\n\r\n", b" 413 "), (post + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\nhello", b" 400 "),
                             (post + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", b" 400 ")):
            self.assertIn(status, self.server.raw(data)[:20], data[:40])
        self.healthy()

    def test_clients_that_leave_free_their_place(self):
        for _ in range(8):
            body = json.dumps(chat("Write a very long story.", max_tokens=900, stream=True)).encode()
            connection = socket.create_connection(("127.0.0.1", self.server.port), timeout=60)
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            connection.recv(1000)  # it runs
            connection.close()
        response, _ = self.server.request("POST", "/v1/chat/completions", chat("hi", max_tokens=2))
        self.assertEqual(response.status, 200)

    def test_a_storm_of_good_bad_and_leaving_clients_leaves_nobody_without_an_answer(self):
        def visit(seed):
            rng = random.Random(seed)
            connection = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=100)
            for _ in range(40):
                body = json.dumps(chat("Name " + "birds " * rng.randint(1, 60), max_tokens=rng.randint(1, 6), n=rng.choice((1, 1, 2)), stream=rng.random() < 0.5)).encode()
                kind = rng.random()
                if kind < 0.3:
                    with socket.create_connection(("127.0.0.1", self.server.port), timeout=100) as other:
                        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
                        other.sendall(rng.randbytes(50) + b"\r\n\r\n" if kind < 0.1 else head + body)
                        if rng.random() < 0.7:
                            other.recv(100)
                    continue
                connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
                response = connection.getresponse()
                self.assertIn(response.status, (200, 429))
                response.read()
            connection.close()

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(visit, range(8)))
        self.healthy()

    def test_a_full_queue_is_429_with_retry_after_and_nobody_else_suffers(self):
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            answers = list(pool.map(lambda i: self.server.request("POST", "/v1/chat/completions", chat(f"Count to {i}.", max_tokens=60, ignore_eos=True)), range(16)))
        statuses = [response.status for response, _ in answers]
        self.assertEqual(set(statuses), {200, 429})
        for response, data in answers:
            if response.status == 429:
                self.assertTrue(response.headers["retry-after"])
                self.assertEqual(json.loads(data)["error"]["code"], "queue_full")
        self.healthy()


class Starting(unittest.TestCase):
    def refused(self, *args):
        result = subprocess.run([OSCAR, "serve", "-m", str(MODEL), "--kv", "bf16", *map(str, args)], capture_output=True, text=True, timeout=60)
        self.assertEqual(len([line for line in result.stderr.splitlines() if "error:" in line]), 1, result.stderr)
        return result.returncode, result.stderr

    def test_what_cannot_be_served_is_refused_by_name(self):
        for args, code, part in ((["--host", "0.0.0.0"], 1, "--api-key-file"), (["--host", "nowhere"], 1, "nowhere"), (["--max-running", "0"], 2, "--max-running 0"),
                                 (["--kv-tokens", "64"], 2, "--kv-tokens 64"), (["--step-tokens", "5000"], 2, "--step-tokens 5000"),
                                 (["--api-key-file", "/nonexistent"], 1, "/nonexistent"), (["--shutdown-timeout", "-1"], 2, "--shutdown-timeout -1"),
                                 (["--tool-parser", "llama"], 2, "--tool-parser: 'llama' is none of"), (["--tool-parser", "pythonic"], 2, "--tool-parser: 'pythonic'")):
            got, text = self.refused(*args)
            self.assertEqual(got, code, text)
            self.assertIn(part, text)

    def test_a_port_that_is_taken_is_named(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            self.assertIn(str(port), self.refused("--port", port)[1])

    def test_a_server_that_loads_says_how_far_it_is(self):
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "model.gguf"
            model.symlink_to(MODEL)  # without a profile beside it: the first start calibrates
            process = subprocess.Popen([OSCAR, "serve", "-m", str(model), "--port", "0"], stderr=subprocess.PIPE, text=True)
            try:
                port = int(re.search(r"127\.0\.0\.1:(\d+)/health", process.stderr.readline()).group(1))
                reader = threading.Thread(target=process.stderr.read, daemon=True)
                reader.start()

                def ask(method, path, body=None):
                    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                    connection.request(method, path, body, {"Content-Type": "application/json"})
                    response = connection.getresponse()
                    body = json.loads(response.read())
                    connection.close()
                    return response.status, response.headers, body

                for path, status in (("/health", 503), ("/ready", 503), ("/live", 200)):
                    got, _, body = ask("GET", path)
                    self.assertEqual((got, body["status"]), (status, "loading"))
                    self.assertTrue(0 <= body["progress"] <= 1)
                status, headers, body = ask("POST", "/v1/chat/completions", json.dumps(chat("hi")))
                self.assertEqual((status, body["error"]["code"]), (503, "loading"))
                self.assertTrue(headers["retry-after"])
            finally:
                process.send_signal(signal.SIGTERM)
                self.assertNotEqual(process.wait(timeout=60), 0)
                reader.join()
                process.stderr.close()
            self.assertEqual([path.name for path in pathlib.Path(folder).iterdir()], ["model.gguf"])

    def test_keys_are_asked_for(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
            keys.write("# keys\nsecret-1\nsecret-2\n")
            keys.flush()
            server = Server("--kv", "bf16", "-c", "512", "--api-key-file", keys.name)
            try:
                for fields, status in (({}, 401), ({"Authorization": "Bearer wrong"}, 401), ({"Authorization": "Bearer secret-2"}, 200), ({"X-Api-Key": "secret-1"}, 200)):
                    response, data = server.request("GET", "/v1/models", fields=fields)
                    self.assertEqual(response.status, status, fields)
                    self.assertNotIn(b"secret", data)
                self.assertEqual(server.request("GET", "/health")[0].status, 200)
            finally:
                self.assertEqual(server.stop(), 0)

    def test_sigterm_lets_a_running_answer_finish(self):
        server = Server("--kv", "bf16", "-c", "512")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            answer = pool.submit(server.request, "POST", "/v1/chat/completions", chat("Tell me a story.", max_tokens=40, ignore_eos=True))
            time.sleep(1.0)  # not a measurement: either order must give a whole answer or a clean refusal
            self.assertEqual(server.stop(), 0)
            try:
                response, data = answer.result()
            except ConnectionError:
                self.skipTest("the request came after the listener had closed")
        self.assertIn(response.status, (200, 503))
        if response.status == 200:
            self.assertEqual(json.loads(data)["usage"]["completion_tokens"], 40)


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: the default model is absent (OSCAR_TEST_MODELS)")
        sys.exit(SKIPPED)
    unittest.main()
