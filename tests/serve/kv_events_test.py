"""KV events of `oscar serve` as a router sees them: a reader of vLLM's layout rebuilds which pages are there, from the stream and from replays."""

import socket
import struct
import sys
import time
import unittest

from running_server import MODEL, SKIPPED, RunningServer

try:
    import msgpack
    import zmq
except ImportError:
    print("skipped: pyzmq or msgpack is absent (.ci/requirements.txt)")
    sys.exit(SKIPPED)


def free_port():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def tokens_of(count, seed):
    return [1000 + (seed * 7919 + i * i * 31 + i * 17) % 20000 for i in range(count)]


class Pages:
    """What is reusable: the tokens of each page by its hash, and the page before it."""

    def __init__(self):
        self.tokens, self.parents, self.salts = {}, {}, {}

    def apply(self, batch):
        seconds, events, rank = msgpack.unpackb(batch, strict_map_key=False)
        assert rank == 0 and abs(seconds - time.time()) < 3600
        for name, *fields in events:
            if name == "BlockStored":
                hashes, parent, tokens, size, adapter, medium, *more = fields
                assert (size, adapter, medium, len(tokens)) == (64, None, "GPU", 64 * len(hashes)), fields
                assert parent is None or parent in self.tokens, "a page before the one it follows"
                for i, one in enumerate(hashes):
                    assert one not in self.tokens, "stored twice"
                    self.tokens[one], self.parents[one] = tokens[64 * i : 64 * i + 64], parent
                    self.salts[one] = more[1][i] if more else None
                    parent = one
            elif name == "BlockRemoved":
                hashes, medium = fields
                assert medium == "GPU"
                for one in hashes:
                    del self.tokens[one], self.parents[one], self.salts[one]
            else:
                assert (name, fields) == ("AllBlocksCleared", [])
                self.__init__()

    def chain_of(self, tokens, salt=None):
        """How many of the pages of a prompt are there."""
        parent, count = None, 0
        for begin in range(0, len(tokens) - 63, 64):
            found = [one for one, own in self.tokens.items() if own == tokens[begin : begin + 64] and self.parents[one] == parent and
                     (begin > 0 or self.salts[one] == (None if salt is None else [salt]))]
            if not found:
                break
            [parent] = found
            count += 1
        return count


class Events(unittest.TestCase):
    def replay(self, endpoint, first=0):
        """Batches by number."""
        dealer = self.context.socket(zmq.DEALER)
        dealer.connect(endpoint)
        dealer.send_multipart([b"", struct.pack(">q", first)])
        batches = {}
        while True:
            self.assertTrue(dealer.poll(20000), "no replay")
            _, number, batch = dealer.recv_multipart()
            [number] = struct.unpack(">q", number)
            if number == -1:
                self.assertEqual(batch, b"")
                break
            batches[number] = batch
        dealer.close(0)
        return batches

    def rebuilt(self, endpoint):
        pages = Pages()
        batches = self.replay(endpoint)
        self.assertEqual(sorted(batches), list(range(len(batches))))
        for number in sorted(batches):
            pages.apply(batches[number])
        return pages, batches

    def test_a_reader_knows_what_can_be_reused(self):
        self.context = zmq.Context()
        endpoints = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]
        heard = self.context.socket(zmq.SUB)
        heard.setsockopt(zmq.SUBSCRIBE, b"kv@one@")
        heard.connect(endpoints[0])
        args = ("--kv", "int2:hadamard", "--log", "none", "-c", "1024", "--kv-tokens", "1400", "--max-running", "1", "--kv-events", endpoints[0], "--kv-events-replay", endpoints[1],
                "--kv-events-topic", "kv@one@model")
        with RunningServer(*args) as server:
            self.assertEqual(server.json("GET", "/server_info")["kv_events"], {"endpoint": endpoints[0], "replay_endpoint": endpoints[1], "topic": "kv@one@model"})
            prompts = [tokens_of(130 + 90 * i, i) for i in range(3)]
            for i, prompt in enumerate(prompts):
                cached = server.complete(prompt, max_tokens=1)[1]
                pages, _ = self.rebuilt(endpoints[1])
                self.assertEqual((cached, pages.chain_of(prompt)), (0, len(prompt) // 64), i)
            server.complete(prompts[0], max_tokens=1, cache_salt="mine")
            pages, _ = self.rebuilt(endpoints[1])
            self.assertEqual((pages.chain_of(prompts[0], "mine"), pages.chain_of(prompts[0])), (2, 2))
            for i in range(6):  # more than the pools hold: others are removed
                server.complete(tokens_of(600, 50 + i), max_tokens=1)
            pages, batches = self.rebuilt(endpoints[1])
            self.assertEqual(pages.chain_of(tokens_of(600, 55)), 9)
            self.assertTrue(any(b"BlockRemoved" in batch for batch in batches.values()))
            # What is said to be there is there, and what is not is computed again.
            for i in range(6):
                prompt = tokens_of(600, 50 + i)
                known = self.rebuilt(endpoints[1])[0].chain_of(prompt)
                cached = server.complete(prompt, max_tokens=1)[1]
                self.assertTrue(cached == 599 if known == 9 else cached < 599, (i, known, cached))
            server.json("POST", "/flush_cache")
            pages, batches = self.rebuilt(endpoints[1])
            self.assertEqual(pages.tokens, {})
            self.assertGreaterEqual(server.metrics()["oscar_kv_event_batches_total"], len(batches))
            self.assertEqual(sorted(self.replay(endpoints[1], len(batches) - 1)), [len(batches) - 1])
            live = {}
            while heard.poll(2000):
                topic, number, batch = heard.recv_multipart()
                self.assertEqual(topic, b"kv@one@model")
                live[struct.unpack(">q", number)[0]] = batch
            self.assertEqual(live, {number: batch for number, batch in batches.items() if number in live})
            self.assertEqual(max(live), max(batches))
        heard.close(0)
        self.context.term()

    def test_endpoints_that_cannot_be_and_options_alone_are_refused(self):
        for args, named in ((("--kv-events", "nowhere"), "--kv-events nowhere"), (("--kv-events-topic", "x"), "--kv-events")):
            with self.assertRaises(AssertionError) as raised:
                RunningServer("--kv", "int2:hadamard", "-c", "512", *args)
            self.assertIn(named, str(raised.exception))


if __name__ == "__main__":
    if not MODEL.exists():
        print("skipped: the default model is absent (OSCAR_TEST_MODELS)")
        sys.exit(SKIPPED)
    unittest.main()
