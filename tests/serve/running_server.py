"""A running `oscar serve` on a free port, for tests."""

import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import threading

OSCAR = os.environ["OSCAR_BINARY"]
MODEL = pathlib.Path(os.environ.get("OSCAR_TEST_MODELS", "/nonexistent")) / "SmolLM2-135M-Instruct.Q4_1.gguf"
SKIPPED = 77


class RunningServer:
    def __init__(self, *args, model=MODEL, timeout=200, reads_log=True, port=0):
        self.timeout = timeout  # of a request, in seconds
        self.process = subprocess.Popen([OSCAR, "serve", "-m", str(model), "--port", str(port), *map(str, args)], stderr=subprocess.PIPE, text=True)
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            match = re.search(r"http://127\.0\.0\.1:(\d+)/v1", line)
            if match:
                self.port = int(match.group(1))
                break
        else:
            self.process.wait(timeout=60)
            self.process.stderr.close()
            raise AssertionError("no address: " + "".join(self.lines))
        self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True)
        if reads_log:
            self.reader.start()

    def stop(self, number=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout=120)
        if self.reader.ident is not None:
            self.reader.join()
        self.process.stderr.close()
        return code

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        code = self.stop()
        assert kind is not None or code == 0, self.lines

    def request(self, method, path, body=None, fields=None):
        """The response and its body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)
        text = body if isinstance(body, (str, bytes, type(None))) else json.dumps(body)
        connection.request(method, path, text, {**({} if text is None else {"Content-Type": "application/json"}), **(fields or {})})
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response, data

    def json(self, method, path, body=None, status=200, fields=None):
        response, data = self.request(method, path, body, fields)
        assert response.status == status, (response.status, data)
        return json.loads(data)

    def complete(self, prompt, **more):
        """Text, cached tokens and the whole answer of a greedy completion."""
        body = {"prompt": prompt, "temperature": 0, **more}
        answer = self.json("POST", "/v1/completions", body)
        return answer["choices"][0]["text"], answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer

    def metrics(self):
        """Values by name with labels, without the model's name."""
        _, data = self.request("GET", "/metrics")
        values = {}
        for line in data.decode().splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[re.sub(r"\{\}", "", re.sub(r'model_name="[^"]*",?', "", name))] = float(value)
        return values

    def open_stream(self, body):
        """A connection that has asked for a stream and read its first event: the request answers. (The head alone comes after ten seconds in any case.)"""
        text = json.dumps({**body, "stream": True}).encode()
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=200)
        connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(text) + text)
        received = b""
        while b"data: " not in received:
            part = connection.recv(1000)
            assert part, received
            received += part
        return connection
