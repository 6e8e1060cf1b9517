"""The suite sees the faults of a server that has them, and none in `oscar serve`."""

import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "serve"))

from checks import CHECKS, answers_at_the_same_time_are_those_alone
from conformance import FAIL, PASS, SKIP, run
from engine import Engine
from faulty_server import FaultyServer
from running_server import MODEL, RunningServer

# By fault: checks that must fail.
FAULTS = {
    "errors in plain text": {"what_is_no_json_is_400", "a_route_that_is_not_there_is_404"},
    "connections are closed": {"a_connection_is_kept"},
    "any key will do": {"a_wrong_key_is_401"},
    "any model will do": {"a_model_that_is_not_there_is_404"},
    "one token too many": {"max_tokens_ends_an_answer"},
    "stop is ignored": {"a_stop_string_ends_the_text_before_it"},
    "stop strings are sent": {"a_stop_string_ends_the_text_before_it"},
    "usage does not add up": {"a_chat_answer_has_its_members", "a_stream_ends_with_usage_where_asked"},
    "ranges are not looked at": {"wrong_types_and_ranges_are_400"},
    "streams are plain text": {"a_chat_stream_has_its_members"},
    "characters are split": {"characters_are_never_split", "a_stream_gives_the_whole_answer"},
    "every chunk has a role": {"a_chat_stream_has_its_members"},
    "two ends": {"a_chat_stream_has_its_members"},
    "usage that nobody asked for": {"a_stream_ends_with_usage_where_asked"},
    "no [DONE]": {"a_chat_stream_has_its_members"},
    "no challenge": {"a_wrong_key_is_401"},
    "no HEAD": {"head_is_get_without_a_body"},
    "bodies in chunks are refused": {"a_body_may_come_in_chunks"},
    "too long is 500": {"a_prompt_that_is_too_long_is_400_and_hurts_nobody"},
    "answers change": {"greedy_answers_are_the_same_again", "answers_at_the_same_time_are_those_alone", "a_stream_gives_the_whole_answer"},
    "parts of text are refused": {"parts_of_text_are_the_text"},
    "what it lacks is ignored": {"a_seed_gives_the_same_draws", "n_gives_so_many_choices", "log_probabilities_spell_the_answer", "a_bias_of_100_decides", "an_echo_scores_the_prompt",
                                 "a_named_tool_is_called", "a_required_tool_is_called", "a_streamed_call_is_the_whole_one", "a_json_object_is_one", "an_answer_under_a_schema_validates"},
}


def outcomes(url, key=None):
    return run(Engine(url, key=key), CHECKS)


class Conformance(unittest.TestCase):
    maxDiff = None

    def test_a_server_without_a_fault_fails_nothing(self):
        with FaultyServer() as server:
            results = outcomes(server.url, "right")
        self.assertEqual({}, {name: reason for name, (outcome, reason) in results.items() if outcome == FAIL})
        self.assertGreater(sum(outcome == SKIP for outcome, _ in results.values()), 5)  # what it lacks is told apart from what it has

    def test_every_fault_is_seen(self):
        for fault, checks in FAULTS.items():
            with self.subTest(fault), FaultyServer(fault) as server:
                failed = {name for name, (outcome, _) in outcomes(server.url, "right").items() if outcome == FAIL}
                self.assertLessEqual(checks, failed)

    @unittest.skipUnless(MODEL.exists(), "no model")
    def test_oscar_fails_nothing_and_lacks_nothing(self):
        key = "conformance-key"
        results = {}
        for options, of_batches in ((), False), (("--deterministic",), True):  # which that mode alone promises, and takes longer for
            checks = [function for function in CHECKS if (function is answers_at_the_same_time_are_those_alone) == of_batches]
            with RunningServer("--kv", "int2:hadamard", "-c", "4096", "--api-key", key, *options) as server:
                results |= run(Engine(f"http://127.0.0.1:{server.port}/v1", key=key), checks)
        self.assertEqual(len(CHECKS), len(results))
        self.assertEqual({}, {name: result for name, result in results.items() if result[0] != PASS})


if __name__ == "__main__":
    unittest.main()
