"""What the tests of this folder ask a running server."""

import json
import socket

from running_server import MODEL, OSCAR, SKIPPED, RunningServer


class Server(RunningServer):
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
