"""An OpenAI-compatible server at a base URL, seen from outside: HTTP by the standard library alone, so that no client hides what comes over the wire."""

import http.client
import json
import urllib.parse

TIMEOUT = 120  # seconds of one request


class Unsupported(Exception):
    """The engine says that it lacks what a check is about."""


class Answer:
    def __init__(self, response, data):
        self.status, self.headers, self.data = response.status, response.headers, data

    def json(self):
        return json.loads(self.data.decode("utf-8"))

    def events(self):
        """The JSON of the events of a stream, framing checked (WHATWG HTML 9.2: an event ends with an empty line; OpenAI: the last is [DONE])."""
        assert self.headers.get_content_type() == "text/event-stream", self.headers.get("Content-Type")
        blocks = self.data.replace(b"\r\n", b"\n").split(b"\n\n")
        assert blocks[-1] == b"", f"the stream ends within an event: {blocks[-1][-80:]!r}"
        payloads = []
        for block in blocks[:-1]:
            lines = [line.decode("utf-8") for line in block.split(b"\n")]  # every event by itself, so that a split character shows
            assert all(line.startswith((":", "data:", "event:", "id:", "retry:")) for line in lines), lines
            payload = "\n".join(line[5:].removeprefix(" ") for line in lines if line.startswith("data:"))
            if payload:
                payloads.append(payload)
        assert payloads and payloads[-1] == "[DONE]", f"the last event is {payloads[-1:]}, not [DONE]"
        assert "[DONE]" not in payloads[:-1], "events after [DONE]"
        return [json.loads(payload) for payload in payloads[:-1]]


class Engine:
    def __init__(self, url, model=None, key=None):
        parts = urllib.parse.urlsplit(url)
        assert parts.scheme == "http" and parts.hostname, f"{url}: not an http URL"
        self.host, self.port, self.base = parts.hostname, parts.port or 80, parts.path.rstrip("/").removesuffix("/v1")
        self.key = key
        self.model = model or self.get("/v1/models").json()["data"][0]["id"]

    def connect(self):
        return http.client.HTTPConnection(self.host, self.port, timeout=TIMEOUT)

    def fields(self, more=None):
        return {**({"Authorization": f"Bearer {self.key}"} if self.key else {}), **(more or {})}

    def send(self, method, path, body=None, fields=None, connection=None):
        """`body` bytes are sent as they are; anything else as JSON."""
        own = connection is None
        connection = connection or self.connect()
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        kind = {} if data is None else {"Content-Type": "application/json"}
        connection.request(method, self.base + path, data, self.fields({**kind, **(fields or {})}))
        response = connection.getresponse()
        answer = Answer(response, response.read())
        if own:
            connection.close()
        return answer

    def get(self, path):
        return self.send("GET", path)

    def ask(self, path, body, optional=False):
        """The answer to a request that must be served; one that is `optional` may be refused by name."""
        answer = self.send("POST", path, {"model": self.model, **body})
        if optional and answer.status in (400, 404, 422, 501):
            raise Unsupported(f"{answer.status}: {answer.data.decode('utf-8', 'replace')[:120]}")
        assert answer.status == 200, f"{answer.status}: {answer.data[:200]!r}"
        return answer

    def chat(self, content, optional=False, **more):
        messages = content if isinstance(content, list) else [{"role": "user", "content": content}]
        return self.ask("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 24, **more}, optional)

    def complete(self, prompt, optional=False, **more):
        return self.ask("/v1/completions", {"prompt": prompt, "temperature": 0, "max_tokens": 24, **more}, optional)


def chat_text(answer):
    return answer.json()["choices"][0]["message"]["content"] or ""


def streamed_text(answer, chat=True):
    choices = [choice for event in answer.events() for choice in event["choices"]]
    return "".join((choice["delta"].get("content") or "") if chat else choice["text"] for choice in choices)
