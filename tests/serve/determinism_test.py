"""`oscar serve --deterministic`: tokens and log-probabilities have the same bits however an answer came about (serving.md 14, G2)."""

import concurrent.futures
import os
import shlex
import sys
import unittest

from running_server import MODEL, SKIPPED, RunningServer

LONG = unittest.skipUnless(os.environ.get("OSCAR_LONG_TESTS"), "takes more than ten seconds: OSCAR_LONG_TESTS=1 runs it, as scripts/test --ci does")
METHOD = os.environ.get("OSCAR_DETERMINISM_KV", "int2:hadamard")
ARGS = ("--kv", METHOD, "--log", "none", "--deterministic", "-c", "1024", "--recent", "64", *shlex.split(os.environ.get("OSCAR_DETERMINISM_ARGS", "")))
MEMORY = ("--kv-bytes", "400000000")
PROMPT = 270


def tokens_of(count, seed):
    return [1000 + (seed * 7919 + i * i * 31 + i * 17) % 20000 for i in range(count)]


def ask(server, prompt, max_tokens=12, **more):
    """Everything that must not change, and the cached tokens."""
    _, cached, answer = server.complete(prompt, max_tokens=max_tokens, ignore_eos=True, logprobs=5, return_token_ids=True, **more)
    choice = answer["choices"][0]
    return (choice["token_ids"], choice["logprobs"], choice["text"]), cached


class Bits(unittest.TestCase):
    def test_cold_hit_batch_and_parts_of_any_size_give_the_same_bits(self):
        prompt = tokens_of(PROMPT, 1)
        with RunningServer(*ARGS, *MEMORY, "--max-running", "16", "--step-tokens", "256") as server:
            cold, cached = ask(server, prompt)
            self.assertEqual(cached, 0)
            hit, cached = ask(server, prompt)
            self.assertEqual((hit, cached), (cold, PROMPT - 1))
            longer = prompt + tokens_of(30, 2)
            cold_longer, _ = ask(server, longer, cache_salt="alone")
            hit_longer, cached = ask(server, longer)
            self.assertGreaterEqual(cached, PROMPT - 64)
            self.assertEqual(hit_longer, cold_longer)
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                others = [pool.submit(ask, server, tokens_of(8 + i, 10 + i), max_tokens=8) for i in range(15)]
                batched, cached = pool.submit(ask, server, prompt, cache_salt="batch").result()
                for other in others:
                    other.result()
            self.assertEqual((batched, cached), (cold, 0))
        for step_tokens in ("64", "512") if os.environ.get("OSCAR_LONG_TESTS") else ("64",):
            with RunningServer(*ARGS, *MEMORY, "--max-running", "2", "--step-tokens", step_tokens, "--no-prefix-cache") as server:
                self.assertEqual(ask(server, prompt)[0], cold, step_tokens)

    @LONG
    def test_requests_that_had_to_leave_the_cache_give_the_same_bits(self):
        prompts = [tokens_of(300 + 64 * i, 20 + i) for i in range(4)]
        with RunningServer(*ARGS, *MEMORY, "--max-running", "1", "--no-prefix-cache") as server:
            alone = [ask(server, prompt, max_tokens=160)[0] for prompt in prompts]
        for more, mode in (((), "swap"), (("--swap-bytes", "0"), "recompute")):
            args = ("--kv-tokens", "1100", "--max-running", "4", "--admit-reserve", "1", *more)
            with RunningServer(*ARGS, *args) as server, concurrent.futures.ThreadPoolExecutor(4) as pool:
                together = list(pool.map(lambda prompt: ask(server, prompt, max_tokens=160)[0], prompts))
                preempted = server.metrics()[f'oscar_preemptions_total{{mode="{mode}"}}']
            self.assertGreater(preempted, 0)
            self.assertEqual(together, alone, mode)


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: the default model is absent (OSCAR_TEST_MODELS)")
        sys.exit(SKIPPED)
    unittest.main()
