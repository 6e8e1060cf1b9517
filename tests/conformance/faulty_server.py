"""A toy server of OpenAI's API with one fault to choose, so that the suite is seen to fail. Its model continues any prompt with the same words, a token each;
it has no tools, structured output, log probabilities, bias or draws, and says so."""

import http.server
import json
import threading

WORDS = "The river ran under the old bridge while žluťoučký 漢字 😀 fishermen sang of distant seas and warm golden evenings".split()
UNSUPPORTED = ("tools", "tool_choice", "response_format", "logprobs", "top_logprobs", "logit_bias", "echo", "seed", "n")
RANGES = {"temperature": (0, 2), "top_p": (0, 1), "presence_penalty": (-2, 2)}


class Refusal(Exception):
    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fault = ""
    answers = 0

    def log_message(self, *arguments):
        pass

    def reply(self, status, value, more=()):
        if self.fault == "errors in plain text" and status >= 400:
            data, kind = b"no", "text/plain"
        else:
            data, kind = json.dumps(value).encode(), "application/json"
        if status == 401 and self.fault != "no challenge":
            more = [*more, ("WWW-Authenticate", "Bearer")]
        self.send_response(status)
        for name, field in [("Content-Type", kind), ("Content-Length", str(len(data))), *more]:
            self.send_header(name, field)
        if self.fault == "connections are closed":
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def refuse(self, status, message, more=()):
        self.reply(status, {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}, more)

    def do_GET(self):
        model = {"id": "toy", "object": "model", "created": 1, "owned_by": "tests"}
        if self.path == "/v1/models":
            return self.reply(200, {"object": "list", "data": [model]})
        if self.path == "/v1/models/toy":
            return self.reply(200, model)
        if self.path in ("/v1/chat/completions", "/v1/completions"):
            return self.refuse(405, "POST", [("Allow", "POST")])
        self.refuse(404, "no such route")

    def do_HEAD(self):
        self.refuse(405, "HEAD") if self.fault == "no HEAD" else self.do_GET()

    def body(self):
        if self.headers.get("Transfer-Encoding") == "chunked":
            if self.fault == "bodies in chunks are refused":
                self.close_connection = True
                raise Refusal(411, "length")
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def do_POST(self):
        try:
            self.answer(self.body())
        except Refusal as refusal:
            self.refuse(refusal.status, str(refusal))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self.refuse(400, f"{type(error).__name__}: {error}")

    def answer(self, data):
        if self.headers.get("Authorization") != "Bearer right" and self.fault != "any key will do":
            raise Refusal(401, "key")
        body = json.loads(data.decode())
        if body["model"] != "toy" and self.fault != "any model will do":
            raise Refusal(404, "no such model")
        self.check_ranges(body)
        chat = self.path == "/v1/chat/completions"
        prompt = self.prompt(body, chat)
        if len(prompt) > 100000:
            raise Refusal(500 if self.fault == "too long is 500" else 400, "too long")
        limit = body.get("max_completion_tokens") or body.get("max_tokens", 16)
        words = WORDS[: min(limit, len(WORDS))]
        if self.fault == "one token too many":
            words = WORDS[: min(limit + 1, len(WORDS))]
        Handler.answers += 1
        text = " ".join(words) + (f" {Handler.answers}" if self.fault == "answers change" else "")
        reason = "length" if len(words) == limit else "stop"
        stops = [body["stop"]] if isinstance(body.get("stop"), str) else body.get("stop") or []
        for stop in stops:
            if stop in text and self.fault != "stop is ignored":
                text, reason = text[: text.index(stop) + (len(stop) if self.fault == "stop strings are sent" else 0)], "stop"
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(words), "total_tokens": len(prompt) + len(words)}
        if self.fault == "usage does not add up":
            usage["total_tokens"] += 1
        if body.get("stream"):
            return self.stream(chat, text, reason, usage if (body.get("stream_options") or {}).get("include_usage") else None)
        content = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        self.reply(200, {"id": "1", "object": "chat.completion" if chat else "text_completion", "created": 1, "model": "toy", "usage": usage,
                         "choices": [{"index": 0, "finish_reason": reason, **content}]})

    def check_ranges(self, body):
        if self.fault == "ranges are not looked at":
            return
        for name, (low, high) in RANGES.items():
            if not low <= body.get(name, low) <= high:
                raise Refusal(400, name)
        if not isinstance(body.get("stream", False), bool) or not isinstance(body.get("stop", ""), (str, list)) or not isinstance(body.get("max_tokens", 1), int):
            raise Refusal(400, "types")
        for name in UNSUPPORTED:
            if name in body and self.fault != "what it lacks is ignored":
                raise Refusal(400, f"{name} is not supported")

    def prompt(self, body, chat):
        if not chat:
            return body["prompt"]
        if not body["messages"] or not isinstance(body["messages"], list):
            raise Refusal(400, "messages")
        prompt = ""
        for message in body["messages"]:
            if message["role"] not in ("system", "user", "assistant", "tool"):
                raise Refusal(400, "role")
            content = message["content"]
            if not isinstance(content, str) and self.fault == "parts of text are refused":
                raise Refusal(400, "content")
            prompt += content if isinstance(content, str) else "".join(part["text"] for part in content)
        return prompt

    def stream(self, chat, text, reason, usage):
        self.send_response(200)
        self.send_header("Content-Type", "text/plain" if self.fault == "streams are plain text" else "text/event-stream")
        self.send_header("Connection", "close")
        self.close_connection = True
        self.end_headers()

        def event(choices, **more):
            value = {"id": "1", "object": "chat.completion.chunk" if chat else "text_completion", "created": 1, "model": "toy", "choices": choices, **more}
            self.wfile.write(b"data: " + json.dumps(value, ensure_ascii=False).encode() + b"\n\n")

        def piece(content, end=None, role=False):
            if not chat:
                return event([{"index": 0, "text": content, "finish_reason": end}])
            event([{"index": 0, "delta": {**({"role": "assistant"} if role else {}), "content": content}, "finish_reason": end}])

        pieces = [text[at : at + 3] for at in range(0, len(text), 3)]
        if self.fault == "characters are split":
            pieces = [part.decode("utf-8", "replace") for part in (text.encode()[at : at + 3] for at in range(0, len(text.encode()), 3))]
        for number, part in enumerate(pieces):
            piece(part, role=number == 0 or self.fault == "every chunk has a role")
        piece("", reason)
        if self.fault == "two ends":
            piece("", reason)
        if usage or self.fault == "usage that nobody asked for":
            event([], usage=usage or {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2})
        if self.fault != "no [DONE]":
            self.wfile.write(b"data: [DONE]\n\n")


class QuietServer(http.server.ThreadingHTTPServer):
    def handle_error(self, request, client_address):
        """Clients leave: a check of the suite."""


class FaultyServer:
    def __init__(self, fault=""):
        handler = type("FaultyHandler", (Handler,), {"fault": fault})
        self.server = QuietServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *arguments):
        self.server.shutdown()
        self.server.server_close()
