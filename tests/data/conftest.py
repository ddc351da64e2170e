"""A server on this machine that misbehaves on request."""

import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass
class Server:
    """A server on this machine, and how it is to misbehave."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    break_after: list[int] = field(default_factory=list)  # for each coming request the bytes after which it ends
    statuses: list[int] = field(default_factory=list)  # errors that the coming requests get
    ranges: bool = True
    length: bool = True
    asked: list[str | None] = field(default_factory=list)  # the Range header of every request so far


def handler_for(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.headers.get("Range")
            server.asked.append(asked)
            body = server.files.get(self.path.lstrip("/"))
            if server.statuses or body is None:
                self.send_error(server.statuses.pop(0) if server.statuses else 404)
                return
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and server.ranges else 0
            if start and start >= len(body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(body)}")
                self.end_headers()
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
            if server.length:
                self.send_header("Content-Length", str(len(body) - start))
            self.end_headers()
            stop = server.break_after.pop(0) if server.break_after else len(body)
            with suppress(ConnectionError):  # a client may hang up, as on a full disk
                self.wfile.write(body[start : start + stop])

        def log_message(self, *args: object) -> None:
            pass

    return Handler


@pytest.fixture
def server() -> Iterator[Server]:
    served = Server()
    http = ThreadingHTTPServer(("127.0.0.1", 0), handler_for(served))
    served.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield served
    http.shutdown()
    thread.join()
    http.server_close()
