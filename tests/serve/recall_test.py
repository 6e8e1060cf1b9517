"""A fact that entered the cache over 4,000 generated tokens ago is recalled to the letter over the 2-bit cache: in the same conversation, in two
continuations of it at once (a fork), after going back behind a turn (a truncation), and by a server that was started again.

Minutes of work, so not part of scripts/test: OSCAR_BINARY=... OSCAR_RECALL_MODEL=FILE.gguf [OSCAR_RECALL_ARGS="--device cuda --profile FILE"] python3 recall_test.py
"""

import concurrent.futures
import os
import shlex
import sys
import unittest

from running_server import RunningServer

MODEL = os.environ.get("OSCAR_RECALL_MODEL", "")
GENERATED = 5600  # text is tokenised anew by the next request, into fewer tokens: over 4,000 must remain
# Longer than the sink, so that the facts behind it lie in 2-bit pages.
SYSTEM = ("You are the clerk of a small harbour. You keep the log book of all ships that call there, you remember what you are told, and you answer "
          "questions in plain words, as briefly as you can. ") * 3
FACTS = "Please remember this: the access code of the harbour office is 7319-4426, and the lighthouse keeper is called Marit Solheim."
# What is generated must not name the facts again; a free essay of a small model comes back to them.
TASK = "Now something else: write all numbers from 1 to 3000 one after the other, with a comma between them, and leave none out."
QUESTIONS = {"What is the access code of the harbour office?": "7319-4426", "What is the name of the lighthouse keeper?": "Marit Solheim"}


class Server(RunningServer):
    def __init__(self):
        super().__init__("-c", "8192", *shlex.split(os.environ.get("OSCAR_RECALL_ARGS", "")), model=MODEL, timeout=3000)

    def chat(self, messages, **more):
        return self.json("POST", "/v1/chat/completions", {"messages": messages, **more})

    def ask(self, messages, question):
        answer = self.chat([*messages, {"role": "user", "content": question}], temperature=0, max_tokens=48)
        print(f"{question} {answer['choices'][0]['message']['content']!r} {answer['usage']}", file=sys.stderr)
        if answer["usage"]["prompt_tokens"] < 4000 + 200:  # the facts are within the first 200
            raise AssertionError(answer["usage"])
        return answer["choices"][0]["message"]["content"]


@unittest.skipUnless(MODEL, "OSCAR_RECALL_MODEL is not set")
class Recall(unittest.TestCase):
    def test_a_fact_is_recalled_after_4000_generated_tokens(self):
        server = Server()
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": FACTS}, {"role": "assistant", "content": "I have noted both in the log book."},
                    {"role": "user", "content": TASK}]
        numbers = server.chat(messages, temperature=0, max_tokens=GENERATED, ignore_eos=True)
        self.assertGreaterEqual(numbers["usage"]["completion_tokens"], GENERATED)
        text = numbers["choices"][0]["message"]["content"]
        for fact in QUESTIONS.values():
            self.assertNotIn(fact, text, "what was generated repeats the fact, so that it would not be recalled from afar")
        messages.append({"role": "assistant", "content": text})
        answers = {}
        for question, fact in QUESTIONS.items():  # the second goes back behind the first: a truncation
            answers[question] = server.ask(messages, question)
            self.assertIn(fact, answers[question])
        with concurrent.futures.ThreadPoolExecutor() as pool:
            forks = dict(zip(QUESTIONS, pool.map(lambda question: server.ask(messages, question), QUESTIONS)))
        for question, fact in QUESTIONS.items():
            self.assertIn(fact, forks[question])
        self.assertEqual(server.stop(), 0)
        server = Server()
        for question, fact in QUESTIONS.items():
            self.assertIn(fact, server.ask(messages, question))
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main()
