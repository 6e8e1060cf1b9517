"""The scheduler, the prefix cache, metrics and KV files of `oscar serve`, seen from outside with a real model."""

import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from running_server import MODEL, OSCAR, RunningServer, SKIPPED

LONG = unittest.skipUnless(os.environ.get("OSCAR_LONG_TESTS"), "takes more than ten seconds: OSCAR_LONG_TESTS=1 runs it, as scripts/test --ci does")

SEA = "The sea is wide and deep, and nobody has seen all of it. Ships cross it by day and by night. "
KV = ("--kv", "int2:hadamard", "--log", "none")


def tokens_of(count, seed):
    """Ids of ordinary tokens: prompts of an exact length."""
    return [1000 + (seed * 7919 + i * i * 31 + i * 17) % 20000 for i in range(count)]


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


class Prefixes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # The same bits cold and after a hit, so that answers may be compared.
        cls.server = RunningServer(*KV, "--deterministic", "-c", "2048", "--max-running", "4", "--kv-bytes", "300000000")
        cls.plain = RunningServer(*KV, "--deterministic", "-c", "2048", "--max-running", "1", "--kv-bytes", "300000000", "--no-prefix-cache")

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, cls.server.lines
        assert cls.plain.stop() == 0, cls.plain.lines

    @LONG
    def test_ten_turns_compute_only_what_is_new_and_answer_as_without_a_cache(self):
        tokenize = lambda text: self.server.json("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
        history = tokenize("A story of a ship.\n" + SEA * 14)
        known = 0
        for turn in range(10):
            history += tokenize(f"\n\nPart {turn + 1}. The ship ")
            text, cached, _ = self.server.complete(history, max_tokens=8, ignore_eos=True)
            expected, none, _ = self.plain.complete(history, max_tokens=8, ignore_eos=True)
            self.assertEqual((text, none), (expected, 0), turn)
            self.assertGreaterEqual(cached, known - 64, turn)
            known = len(history)  # and the answer, if its text gives its tokens back
            history += tokenize(text)

    def test_a_prompt_that_comes_again_computes_one_token_whatever_its_length(self):
        for count in (64, 127, 320, 384, 385, 449):
            prompt = tokens_of(count, 100 + count)
            first, cold, _ = self.server.complete(prompt, max_tokens=6, ignore_eos=True)
            again, cached, _ = self.server.complete(prompt, max_tokens=6, ignore_eos=True)
            self.assertEqual((cold, cached, first), (0, count - 1, again), count)
            longer, cached, _ = self.server.complete(prompt + tokens_of(3, 9), max_tokens=2)
            self.assertGreaterEqual(cached, count - 1)

    def test_the_second_visitor_of_a_document_pays_once_and_the_third_hits(self):
        document = tokens_of(500, 3)
        cached = []
        for visitor in range(3):
            prompt = document + tokens_of(80, 60 + visitor)
            cached.append(self.server.complete(prompt, max_tokens=2, ignore_eos=True)[1])
        self.assertEqual(cached, [0, 64, 448])

    def test_requests_that_come_together_share_the_prompt_that_one_of_them_computes(self):
        document = tokens_of(650, 4)
        before = self.server.metrics()["oscar_prefix_hit_tokens_total"]
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            answers = list(pool.map(lambda i: self.server.complete(document + tokens_of(70, 80 + i), max_tokens=4, ignore_eos=True), range(3)))
        hits = sorted(cached for _, cached, _ in answers)
        self.assertEqual(hits[0], 0)
        self.assertGreaterEqual(hits[1], 640)
        body = {"prompt": tokens_of(400, 5), "n": 3, "temperature": 1, "seed": 1, "max_tokens": 4, "ignore_eos": True}
        self.server.json("POST", "/v1/completions", body)
        after = self.server.metrics()["oscar_prefix_hit_tokens_total"]
        self.assertGreaterEqual(after - before, 2 * 640 + 2 * 399)

    def test_salts_and_flushes_separate(self):
        prompt = tokens_of(500, 6)
        self.server.complete(prompt, max_tokens=2)
        self.assertEqual(self.server.complete(prompt, max_tokens=2, cache_salt="mine")[1], 0)
        self.assertEqual(self.server.complete(prompt, max_tokens=2, cache_salt="mine")[1], 499)
        self.assertTrue(self.server.json("POST", "/flush_cache")["success"])
        self.assertEqual(self.server.complete(prompt, max_tokens=2)[1], 0)
        self.assertEqual(self.plain.json("GET", "/v1/cache")["cached_tokens"], 0)

    def test_scored_prompts_read_nothing_and_write(self):
        prompt = tokens_of(300, 7)
        one = self.server.complete(prompt, max_tokens=1, echo=True, logprobs=1)
        self.assertEqual(one[1], 0)
        two = self.server.complete(prompt, max_tokens=1, echo=True, logprobs=1)
        self.assertEqual(two[1], 0)
        self.assertEqual(one[2]["choices"][0]["logprobs"], two[2]["choices"][0]["logprobs"])
        self.assertEqual(self.server.complete(prompt, max_tokens=1)[1], 299)

    def test_clients_that_leave_give_everything_back_and_leave_what_they_computed(self):
        prompt = tokens_of(700, 8)
        connection = self.server.open_stream({"prompt": prompt, "max_tokens": 1000, "ignore_eos": True, "temperature": 0})
        connection.close()
        wait_until(lambda: self.server.metrics()["oscar_requests_running"] == 0)
        pages = self.server.metrics()
        self.assertEqual([pages[f'oscar_kv_pages{{kind="{kind}",state="active"}}'] for kind in ("int2", "bf16")], [0, 0])
        self.assertGreaterEqual(self.server.complete(prompt, max_tokens=1)[1], 699)
        self.assertGreaterEqual(pages['oscar_cancelled_total{state="decode"}'], 1)


class Pressure(unittest.TestCase):
    @LONG
    def test_a_cache_too_small_for_all_loses_nobody_and_changes_no_answer(self):
        prompts = [tokens_of(300 + 64 * i, 20 + i) for i in range(4)]
        ask = lambda server, prompt: server.complete(prompt, max_tokens=160, ignore_eos=True)[0]
        # More is encoded, and encoded pages are what is short. The same bits in a batch, after a swap and when computed anew.
        small = (*KV, "--deterministic", "--recent", "64")
        with RunningServer(*small, "-c", "1024", "--max-running", "1", "--kv-bytes", "300000000", "--no-prefix-cache") as server:
            alone = [ask(server, prompt) for prompt in prompts]
        for more, mode in (((), "swap"), (("--swap-bytes", "0"), "recompute")):
            args = ("-c", "1024", "--kv-tokens", "1100", "--max-running", "4", "--admit-reserve", "1", *more)
            with RunningServer(*small, *args) as server, concurrent.futures.ThreadPoolExecutor(4) as pool:
                together = list(pool.map(lambda prompt: ask(server, prompt), prompts))
                metrics = server.metrics()
            self.assertGreater(metrics[f'oscar_preemptions_total{{mode="{mode}"}}'], 0)
            self.assertEqual(together, alone, mode)
            self.assertEqual(metrics["oscar_requests_preempted"], 0)

    def test_nobody_begins_who_would_have_to_leave_again(self):
        # All of a request is BF16: five pages, and there are eleven. Encoded pages would be there for all four.
        args = ("-c", "512", "--kv-tokens", "512", "--max-running", "4", "--no-prefix-cache", "--queue-timeout", "0")
        with RunningServer(*KV, *args) as server, concurrent.futures.ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda i: server.complete(tokens_of(290, 120 + i), max_tokens=12, ignore_eos=True), range(4)))
            metrics = server.metrics()
        self.assertEqual([metrics[f'oscar_preemptions_total{{mode="{mode}"}}'] for mode in ("swap", "recompute")], [0, 0])

    def test_a_full_queue_says_when_to_come_back_and_waiting_has_an_end(self):
        args = ("-c", "1024", "--max-running", "1", "--max-queued-requests", "1", "--queue-timeout", "1", "--kv-bytes", "300000000")
        with RunningServer(*KV, *args) as server:
            stream = server.open_stream({"prompt": tokens_of(500, 30), "max_tokens": 500, "ignore_eos": True})
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                asked = [pool.submit(server.request, "POST", "/v1/completions", {"prompt": "hi", "max_tokens": 1}) for _ in range(4)]
                answers = [one.result() for one in asked]
            codes = {(response.status, json.loads(data)["error"]["code"]) for response, data in answers if response.status != 200}
            self.assertIn((429, "queue_full"), codes)
            self.assertLessEqual(codes, {(429, "queue_full"), (503, "queue_timeout")})
            for response, _ in answers:
                if response.status != 200:
                    self.assertTrue(1 <= int(response.headers["retry-after"]) <= 60)
                    self.assertGreaterEqual(int(response.headers["retry-after-ms"]), 1000)
            self.assertGreaterEqual(server.metrics()['oscar_rejected_total{reason="queue_full"}'], 1)
            stream.close()
            wait_until(lambda: server.metrics()["oscar_requests_running"] == 0)

    def test_a_busy_server_is_healthy(self):
        with RunningServer(*KV, "-c", "1024", "--max-running", "1", "--max-queued-requests", "0", "--kv-bytes", "300000000") as server:
            stream = server.open_stream({"prompt": tokens_of(100, 32), "max_tokens": 900, "ignore_eos": True})
            self.assertEqual(server.json("GET", "/health_generate"), {"status": "ok"})  # long before its own token could come
            stream.close()

    def test_an_aborted_request_ends(self):
        with RunningServer(*KV, "-c", "1024", "--kv-bytes", "300000000") as server, concurrent.futures.ThreadPoolExecutor(1) as pool:
            body = {"prompt": tokens_of(200, 31), "max_tokens": 800, "ignore_eos": True}
            asked = pool.submit(server.request, "POST", "/v1/completions", body, {"X-Request-Id": "mine"})
            wait_until(lambda: server.metrics()["oscar_requests_running"] == 1)
            self.assertEqual(server.json("POST", "/abort_request", {"request_id": "other"})["aborted"], 0)
            self.assertEqual(server.json("POST", "/abort_request", {"request_id": "mine"})["aborted"], 1)
            self.assertEqual(asked.result()[0].status, 503)


class Watching(unittest.TestCase):
    NAMES = """oscar_requests_running oscar_requests_waiting oscar_requests_preempted oscar_requests_waiting_by_reason oscar_kv_bytes oscar_kv_tokens
        oscar_kv_pages oscar_kv_capacity_bytes oscar_kv_usage_ratio oscar_kv_saved_bytes oscar_nonfinite_total oscar_prefix_query_tokens_total
        oscar_prefix_hit_tokens_total oscar_prefix_evicted_tokens_total oscar_prefix_resume_points oscar_prefix_unresumed_tokens_total
        oscar_prompt_tokens_total oscar_generation_tokens_total oscar_requests_total oscar_rejected_total oscar_cancelled_total oscar_preemptions_total
        oscar_itl_bound_violations_total oscar_auth_failures_total oscar_time_to_first_token_seconds oscar_inter_token_latency_seconds
        oscar_e2e_request_latency_seconds oscar_request_queue_seconds oscar_request_prefill_seconds oscar_request_decode_seconds
        oscar_request_prompt_tokens oscar_request_generation_tokens oscar_step_tokens oscar_step_seconds oscar_http_requests_total oscar_http_connections
        oscar_step_age_seconds oscar_ready oscar_build_info oscar_cache_config_info oscar_demoted_pages_total oscar_quantised_rows_total
        oscar_tool_parse_failures_total oscar_grammar_mask_seconds oscar_log_lines_dropped_total
        oscar_kv_event_batches_total oscar_kv_event_resyncs_total""".split()
    ALIASES = """vllm:num_requests_running vllm:num_requests_waiting vllm:kv_cache_usage_perc vllm:cache_config_info vllm:prefix_cache_queries_total
        vllm:prefix_cache_hits_total vllm:prompt_tokens_total vllm:prompt_tokens_cached_total vllm:generation_tokens_total vllm:num_preemptions_total
        vllm:time_to_first_token_seconds vllm:inter_token_latency_seconds vllm:e2e_request_latency_seconds vllm:request_queue_time_seconds
        vllm:request_prefill_time_seconds vllm:request_decode_time_seconds vllm:request_prompt_tokens vllm:request_generation_tokens
        vllm:request_success_total""".split()
    SGLANG = """sglang:num_running_reqs sglang:num_queue_reqs sglang:token_usage sglang:cache_hit_rate sglang:cached_tokens_total
        sglang:prompt_tokens_total sglang:generation_tokens_total sglang:cache_config_info""".split()

    def test_metrics_have_the_documented_names_and_true_numbers(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
            keys.write("boss role=admin\nshopper name=web tenant=shop role=user\nscraper role=metrics\n")
            keys.flush()
            with RunningServer("--kv", "int2:hadamard", "-c", "1024", "--kv-bytes", "300000000", "--log", "json", "--api-key-file", keys.name) as server:
                as_user, as_boss, as_scraper = ({"Authorization": f"Bearer {key}"} for key in ("shopper", "boss", "scraper"))
                body = {"prompt": tokens_of(500, 40), "max_tokens": 5, "ignore_eos": True}
                for _ in range(2):
                    server.json("POST", "/v1/completions", body, fields={**as_user, "X-Request-Id": "logged"})
                self.assertEqual(server.json("POST", "/v1/completions", body, fields=as_boss)["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
                self.assertEqual(server.request("POST", "/v1/completions", body, as_scraper)[0].status, 403)
                self.assertEqual(server.request("POST", "/flush_cache", fields=as_user)[0].status, 403)
                self.assertEqual(server.request("GET", "/metrics")[0].status, 401)
                deadline = time.monotonic() + 30  # an answer is counted when its request ends, just behind its last byte
                while time.monotonic() < deadline:
                    response, data = server.request("GET", "/metrics", fields=as_scraper)
                    if re.search(r'^oscar_requests_total{.*outcome="length"} 3$', data.decode(), re.M):
                        break
                plain, both, sglang = (server.request("GET", f"/metrics?compat={names}", fields=as_scraper)[1].decode() for names in ("none", "both", "sglang"))
                info = server.json("GET", "/server_info", fields=as_user)
                cache = server.json("GET", "/v1/cache", fields=as_user)
                load = server.json("GET", "/v1/loads?include=core", fields=as_user)["loads"][0]
        self.assertEqual(response.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
        text = data.decode()
        families = re.findall(r"^# TYPE (\S+) ", text, re.M)
        self.assertEqual(sorted(families), sorted(self.NAMES + self.ALIASES))
        names_in = lambda page: sorted(re.findall(r"^# TYPE (\S+) ", page, re.M))
        self.assertEqual(names_in(plain), sorted(self.NAMES))
        self.assertEqual(names_in(sglang), sorted(self.NAMES + self.SGLANG))
        self.assertEqual(names_in(both), sorted(self.NAMES + self.ALIASES + self.SGLANG))
        value = lambda name: float(re.search(rf"^{re.escape(name)} (\S+)$", text.replace(f'model_name="{MODEL.stem}"', ""), re.M).group(1))
        self.assertEqual(value("oscar_prompt_tokens_total{}"), 1500)
        self.assertEqual(value("oscar_prefix_hit_tokens_total{}"), 499)
        self.assertEqual(value("oscar_generation_tokens_total{}"), 15)
        self.assertEqual(value("oscar_time_to_first_token_seconds_count{}"), 3)
        self.assertEqual(value("oscar_auth_failures_total{}"), 1)
        self.assertEqual(value('oscar_requests_total{,outcome="length"}'), 3)
        self.assertEqual(value("oscar_demoted_pages_total{}") * 64 * 30 * 3 * 2, value("oscar_quantised_rows_total{}"))
        self.assertGreater(value("oscar_demoted_pages_total{}"), 0)
        self.assertEqual((info["model"], info["kv"]["method"], info["kv"]["sink"], info["kv"]["recent"], info["backend"]), (MODEL.stem, "int2:hadamard", 64, 256, "cpu"))
        self.assertEqual(load["num_running_reqs"], 0)
        self.assertEqual((cache["hit_tokens"], cache["query_tokens"]), (499, 1500))
        self.assertGreater(cache["saved_bytes"], 0)
        lines = [json.loads(line) for line in server.lines if line.startswith("{")]
        second = [line for line in lines if line["id"] == "logged"][1]
        self.assertEqual((second["cached_tokens"], second["tenant"], second["status"], second["completion_tokens"]), (499, "shop", 200, 5))
        self.assertFalse([line for line in server.lines if "shopper" in line or "boss" in line])
        if shutil.which("promtool"):
            checked = subprocess.run(["promtool", "check", "metrics"], input=plain, capture_output=True, text=True)
            self.assertEqual(checked.returncode, 0, checked.stderr + checked.stdout)


class Limits(unittest.TestCase):
    def test_a_key_has_its_requests_and_its_tokens_and_no_more(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
            keys.write("one name=one\ntwo name=two\n")
            keys.flush()
            args = ("-c", "512", "--kv-bytes", "300000000", "--api-key-file", keys.name, "--tokens-per-minute-per-key", "100", "--max-requests-per-key", "2")
            with RunningServer(*KV, *args) as server:
                one, two = ({"Authorization": f"Bearer {key}"} for key in ("one", "two"))
                ask = lambda count, fields, status=200: server.json("POST", "/v1/completions", {"prompt": tokens_of(count, 50), "max_tokens": 4, "ignore_eos": True}, status, fields)
                ask(200, one)
                error = ask(1, one, 429)["error"]
                self.assertEqual((error["code"], error["type"]), ("rate_limit_exceeded", "rate_limit_error"))
                response, _ = server.request("POST", "/v1/completions", {"prompt": "hi", "max_tokens": 1}, one)
                self.assertTrue(50 <= int(response.headers["retry-after"]) <= 70, response.headers["retry-after"])
                ask(10, two)

    def test_an_address_has_so_many_connections(self):
        with RunningServer(*KV, "-c", "512", "--kv-bytes", "300000000", "--max-connections-per-ip", "2") as server:
            held = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
            for connection in held:
                connection.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
                self.assertIn(b" 200 ", connection.recv(1000))
            response, data = server.request("GET", "/live")
            self.assertEqual((response.status, json.loads(data)["error"]["code"]), (503, "too_many_connections"))
            for connection in held:
                connection.close()
            wait_until(lambda: server.request("GET", "/live")[0].status == 200)


class Log(unittest.TestCase):
    def test_a_log_that_nobody_reads_holds_up_nobody(self):
        with RunningServer("--kv", "int2:hadamard", "-c", "512", "--kv-bytes", "300000000", reads_log=False) as server:
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=100)
            fields = {"X-Request-Id": "x" * 128}  # long lines: more than the pipe and the queue hold
            for _ in range(8500):
                connection.request("GET", "/version", headers=fields)
                response = connection.getresponse()
                response.read()
                self.assertEqual(response.status, 200)
            connection.close()
            self.assertTrue(server.complete("hi", max_tokens=2)[2]["usage"])
            self.assertGreater(server.metrics()["oscar_log_lines_dropped_total"], 0)


class Files(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = pathlib.Path(self.folder.name)

    def server(self, *more, kv=KV):
        return RunningServer(*kv, "--deterministic", "-c", "1024", "--kv-bytes", "300000000", "--kv-dir", self.folder.name, *more)

    def test_a_restarted_server_goes_on_from_its_file(self):
        prompts = [tokens_of(400 + 100 * i, 90 + i) for i in range(4)]
        with self.server() as server:
            answers = [server.complete(prompt, max_tokens=8, ignore_eos=True)[0] for prompt in prompts]
            hot = sum(server.complete(prompt, max_tokens=1)[1] for prompt in prompts)
            self.assertEqual(server.json("POST", "/v1/kv/save", {"name": "one"})["success"], True)
            self.assertEqual([file["name"] for file in server.json("GET", "/v1/kv")["files"]], ["one"])
            for name in ("../x", "", ".x", "a/b", 7, None):
                server.json("POST", "/v1/kv/save", {"name": name}, status=400)
            server.json("POST", "/v1/kv/restore", {"name": "two"}, status=404)
        with self.server() as server:
            self.assertEqual(server.json("POST", "/v1/kv/restore", {"name": "one"})["success"], True)
            again = [server.complete(prompt, max_tokens=8, ignore_eos=True) for prompt in prompts]
            self.assertEqual([text for text, _, _ in again], answers)
            self.assertGreaterEqual(sum(cached for _, cached, _ in again), 0.95 * hot)
            self.assertEqual(server.json("DELETE", "/v1/kv/one")["success"], True)
            self.assertEqual(server.json("GET", "/v1/kv")["files"], [])
        with RunningServer(*KV, "-c", "512", "--kv-bytes", "300000000") as server:
            server.json("POST", "/v1/kv/save", {"name": "one"}, status=404)

    def test_files_of_another_method_and_damaged_files_are_refused(self):
        with self.server() as server:
            server.complete(tokens_of(500, 95), max_tokens=2)
            server.json("POST", "/v1/kv/save", {"name": "one"})
        data = bytearray((self.path / "one.oscarkv").read_bytes())
        data[len(data) // 3] ^= 4
        (self.path / "bad.oscarkv").write_bytes(data)
        (self.path / "cut.oscarkv").write_bytes(data[:-100])
        with self.server(kv=("--kv", "int2:naive", "--log", "none")) as server:
            for name in ("one", "bad", "cut"):
                error = server.json("POST", "/v1/kv/restore", {"name": name}, status=400)["error"]
                self.assertEqual(error["code"], "kv_file_rejected")
                self.assertNotIn(self.folder.name, error["message"])
            self.assertEqual(server.json("GET", "/v1/cache")["cached_tokens"], 0)

    @LONG
    def test_a_server_killed_while_saving_loses_no_saved_file(self):
        for attempt in range(3):
            server = self.server()
            try:
                if attempt == 0:
                    for i in range(4):
                        server.complete(tokens_of(900, 200 + i), max_tokens=1)
                    server.json("POST", "/v1/kv/save", {"name": "kept"})
                else:
                    self.assertGreater(server.json("POST", "/v1/kv/restore", {"name": "kept"})["resume_points"], 0)
                thread = threading.Thread(target=self.save_until_it_dies, args=(server,))
                thread.start()
                time.sleep(0.3 * (attempt + 1))  # not a measurement: anywhere in a row of saves
            finally:
                server.stop(signal.SIGKILL)
            thread.join()
        with self.server() as server:
            self.assertGreater(server.json("POST", "/v1/kv/restore", {"name": "kept"})["resume_points"], 0)
            self.assertEqual(server.complete(tokens_of(900, 200), max_tokens=1)[1], 899)

    @staticmethod
    def save_until_it_dies(server):
        try:
            while True:
                server.request("POST", "/v1/kv/save", {"name": "kept"})
        except OSError:
            return
        except Exception:  # http.client's own errors of a connection that ended
            return


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: the default model is absent (OSCAR_TEST_MODELS)")
        sys.exit(SKIPPED)
    unittest.main()
