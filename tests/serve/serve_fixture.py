"""A running `oscar serve` for the tests of this folder."""

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


class Server:
    """A running `oscar serve` on a free port."""

    def __init__(self, *args):
        self.process = subprocess.Popen([OSCAR, "serve", "-m", str(MODEL), "--port", "0", *map(str, args)], stderr=subprocess.PIPE, text=True)
        self.lines = []
        for line in self.process.stderr:
            self.lines.append(line)
            match = re.search(r"http://127\.0\.0\.1:(\d+)/v1", line)
            if match:
                self.port = int(match.group(1))
                # The log goes on; a full pipe would stop the server.
                self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True)
                self.reader.start()
                return
        raise AssertionError("no address: " + "".join(self.lines))

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=120)
        self.reader.join()
        self.process.stderr.close()
        return code

    def request(self, method, path, body=None, fields=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=100)
        text = body if isinstance(body, (str, bytes, type(None))) else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json", **(fields or {})} if text is not None else fields or {})
        response = connection.getresponse()
        data = response.read()
        connection.close()
        return response, data

    def error(self, path, body, **fields):
        response, data = self.request("POST", path, body, fields)
        return response.status, json.loads(data)["error"]

    def raw(self, data, timeout=30):
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout) as connection:
            connection.sendall(data)
            received = b""
            while part := connection.recv(65536):
                received += part
            return received


def chat(*texts, **more):
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)], "temperature": 0, **more}
