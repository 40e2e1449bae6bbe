"""A server of files on the loopback, with or without byte ranges."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


@contextmanager
def http_files(files: Mapping[str, bytes], *, ranges: bool) -> Iterator[str]:
    """Serves `files` by name, and a page at / that links to them; gives the URL."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Says nothing."""

        def do_HEAD(self) -> None:
            self._respond(body=False)

        def do_GET(self) -> None:
            self._respond(body=True)

        def _respond(self, body: bool) -> None:
            name = self.path.strip("/")
            links = "".join(f'<a href="/{name}">{name}</a>' for name in files).encode()
            content = files.get(name) if name else links
            if content is None:
                self.send_error(404)
                return
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")) if ranges else None
            start, stop = 0, len(content)
            if wanted:
                start, stop = int(wanted[1]), min(int(wanted[2] or stop) + 1, stop)
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
            else:
                self.send_response(200)
            if ranges:
                self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(stop - start))
            self.end_headers()
            if body:
                self.wfile.write(content[start:stop])

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60.0)
