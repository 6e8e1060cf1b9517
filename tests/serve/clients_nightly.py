"""The server under other people's clients and checkers: LangChain's ChatOpenAI, lm-eval over HTTP, schemathesis on our OpenAPI file. Part of scripts/nightly.

OSCAR_BINARY=... OSCAR_TEST_MODELS=... python3 clients_nightly.py
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from serve_fixture import Server

HERE = pathlib.Path(__file__).resolve().parent
DEEP_PATHS = ("/tokenize", "/v1/tokenize", "/v1/completions", "/v1/chat/completions", "/v1/completions/render", "/v1/chat/completions/render",
              "/inference/v1/generate")
EXAMPLES = os.environ.get("OSCAR_NIGHTLY_EXAMPLES", "100")


def tool_path(name):
    return str(pathlib.Path(sys.executable).parent / name)


class Clients(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--kv", "int2:hadamard", "-t", "1", "-c", "1024", "--model-id", "smol", "--max-running", "8")
        cls.url = f"http://127.0.0.1:{cls.server.port}"

    @classmethod
    def tearDownClass(cls):
        assert cls.server.stop() == 0, cls.server.lines

    def test_langchain_chats_streams_calls_tools_and_gets_objects(self):
        from langchain_core.tools import tool
        from langchain_openai import ChatOpenAI
        from pydantic import BaseModel

        @tool
        def add(a: int, b: int) -> int:
            """Adds two numbers."""
            return a + b

        class City(BaseModel):
            name: str
            inhabitants: int

        model = ChatOpenAI(base_url=self.url + "/v1", api_key="none", model="smol", temperature=0, max_tokens=100, timeout=300)
        self.assertTrue(model.invoke("What is the capital of France?").content)
        self.assertGreater(len(list(model.stream("Say hi."))), 2)
        [call] = model.bind_tools([add], tool_choice="add", parallel_tool_calls=False).invoke("What is 2 plus 3?").tool_calls
        self.assertEqual((call["name"], set(call["args"])), ("add", {"a", "b"}))
        for method in ("json_schema", "function_calling"):
            self.assertIsInstance(model.with_structured_output(City, method=method).invoke("Describe Paris: name and inhabitants."), City)

    def lm_eval(self, server, concurrent_requests, folder):
        arguments = f"base_url=http://127.0.0.1:{server.port}/v1/completions,model=smol,tokenizer_backend=remote,num_concurrent={concurrent_requests},max_length=1024"
        command = [tool_path("lm_eval"), "--model", "local-completions", "--model_args", arguments, "--include_path", ".", "--tasks", "oscar_capitals",
                   "--log_samples", "--output_path", folder]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        done = subprocess.run(command, cwd=HERE / "lm_eval", env=environment, capture_output=True, text=True, timeout=900)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        [samples] = pathlib.Path(folder).glob("**/samples*.jsonl")
        rows = [json.loads(line) for line in samples.read_text().splitlines()]
        return {row["doc_id"]: [float(response[0]) for response in row["filtered_resps"]] for row in rows}

    def test_lm_eval_scores_the_same_alone_and_eight_at_once_and_as_echo_does(self):
        args = ("--kv", "int2:hadamard", "-t", "1", "-c", "1024", "--model-id", "smol", "--max-running", "8", "--deterministic")  # the same bits in any batch
        with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as eight, Server(*args) as server:
            self.compare(server, self.lm_eval(server, 1, one), self.lm_eval(server, 8, eight))

    def compare(self, server, alone, together):
        rows = [json.loads(line) for line in (HERE / "lm_eval" / "capitals.jsonl").read_text().splitlines()]
        self.assertEqual(len(alone), len(rows))
        right = 0
        for number, row in enumerate(rows):
            for a, b in zip(alone[number], together[number]):
                self.assertAlmostEqual(a, b, delta=1e-6)
            right += max(range(len(row["cities"])), key=alone[number].__getitem__) == row["answer"]
            context = f"The capital of {row['country']} is"
            for city, score in zip(row["cities"], alone[number]):
                body = {"prompt": f"{context} {city}", "echo": True, "logprobs": 0, "max_tokens": 0, "add_special_tokens": False}
                scores = json.loads(server.request("POST", "/v1/completions", body)[1])["choices"][0]["logprobs"]
                own = sum(value for value, offset in zip(scores["token_logprobs"], scores["text_offset"]) if offset >= len(context))
                self.assertAlmostEqual(own, score, delta=1e-6)
        self.assertGreater(right, len(rows) // 2)

    def schemathesis(self, *arguments):
        command = [tool_path("schemathesis"), "run", self.url + "/openapi.json", "--checks", "all", "--mode", "all", "--max-examples", EXAMPLES, "--seed", "1",
                   "--request-timeout", "120", "--max-response-time", "600", "--no-color", *arguments]
        with tempfile.TemporaryDirectory() as folder:  # it keeps what it finds where it runs
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=3600)
        self.assertEqual(done.returncode, 0, done.stdout[-6000:] + done.stderr[-2000:])

    def test_schemathesis_finds_nothing_in_the_routes(self):
        self.schemathesis(*[word for path in DEEP_PATHS for word in ("--exclude-path", path)])

    def test_schemathesis_finds_nothing_in_the_completions(self):
        # What a schema cannot say (keys of logit_bias, min_tokens against max_tokens, templates) is refused with 400.
        for path in DEEP_PATHS:
            self.schemathesis("--include-path", path, "--exclude-checks", "positive_data_acceptance", "--phases", "coverage,fuzzing")
        self.assertEqual(self.server.request("GET", "/health")[0].status, 200)


if __name__ == "__main__":
    unittest.main()
