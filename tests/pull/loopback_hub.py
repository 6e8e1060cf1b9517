"""An HTTP(S) server on 127.0.0.1 that behaves like a model hub: ETags, ranges, redirects, and a hold in mid-file."""

import http.server
import shutil
import ssl
import subprocess
import threading


class LoopbackHub:
    """Serves `content` under every path.

    hold_at: stop after so many bytes of the body until release() or the end of the test.
    location: where every request is sent on to instead."""

    def __init__(self, content, etag='"v1"', certificate=None):
        self.content = content
        self.etag = etag
        self.hold_at = None
        self.location = None
        self.requests = []  # (path, headers)
        self._released = threading.Event()
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                hub.requests.append((self.path, dict(self.headers.items())))
                hub.answer(self)

            def log_message(self, *arguments):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # A client that gives up in the middle is part of the tests, not worth a traceback.
        self._server.handle_error = lambda request, address: None
        self.scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
            self.scheme = "https"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def url(self, path=""):
        return f"{self.scheme}://127.0.0.1:{self._server.server_address[1]}{path}"

    def release(self):
        self._released.set()

    def close(self):
        self.release()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def answer(self, handler):
        if self.location is not None:
            handler.send_response(302)
            handler.send_header("Location", self.location)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        first = 0
        asked = handler.headers.get("Range", "")
        if asked.startswith("bytes=") and handler.headers.get("If-Range", self.etag) == self.etag:
            first = int(asked[len("bytes=") : -1])
        body = self.content[first:]
        handler.send_response(206 if first else 200)
        if first:
            handler.send_header("Content-Range", f"bytes {first}-{len(self.content) - 1}/{len(self.content)}")
        handler.send_header("ETag", self.etag)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        end = len(body) if self.hold_at is None else self.hold_at
        handler.wfile.write(body[:end])
        handler.wfile.flush()
        if end < len(body):
            self._released.wait()
            handler.wfile.write(body[end:])


def make_certificate(folder):
    """(certificate, key) files for 127.0.0.1, signed by itself; None where there is no openssl program."""
    if shutil.which("openssl") is None:
        return None
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=loopback"
    command = command.split() + ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return str(certificate), str(key)
