"""A hub of Hugging Face on loopback: folders as models, at one commit. As much of its protocol as
the library asks for."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import huggingface_hub.constants
import pytest

REVISION = "a" * 40


class Hub:
    """OWNER/NAME → folder. `down`: answers with an error from now on."""

    def __init__(self) -> None:
        self.models: dict[str, Path] = {}
        self.down = False
        self.asked: list[str] = []

    def answer(self, path: str) -> tuple[int, bytes]:
        """Status, and content."""
        self.asked.append(path)
        if self.down:
            return 403, b"{}"
        for name, folder in self.models.items():
            if path.startswith(f"/api/models/{name}"):
                files = [{"rfilename": f.name, "size": f.stat().st_size} for f in folder.iterdir()]
                told = {"id": name, "sha": REVISION, "siblings": files, "tags": []}
                return 200, json.dumps(told).encode()
            start = f"/{name}/resolve/{REVISION}/"
            if path.startswith(start) and (folder / path.removeprefix(start)).is_file():
                return 200, (folder / path.removeprefix(start)).read_bytes()
        return 404, b"{}"


@contextmanager
def played_hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Yield a hub whose fetched files are in `cache`."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, content = hub.answer(urlsplit(self.path).path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", hashlib.sha256(content).hexdigest())
            self.send_header("X-Repo-Commit", REVISION)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        do_HEAD = do_GET  # noqa: N815 - what the server looks for

        def log_message(self, *told: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    constants = huggingface_hub.constants
    place = f"http://127.0.0.1:{server.server_port}"
    template = place + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", place)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
