"""A real browser, told what to do over its debugging protocol. Needs Chromium and nothing else."""

import asyncio
import base64
import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

START_S = 60.0
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def found() -> str:
    """Raises: FileNotFoundError."""
    for name in (os.environ.get("ATOM_BROWSER", ""), *NAMES):
        path = shutil.which(name)
        if path is not None:
            return path
    raise FileNotFoundError(f"no browser: install one of {', '.join(NAMES)}, or set ATOM_BROWSER")


class Page:
    """One tab. `requested` are the URLs of everything that it asked for."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.requested: list[str] = []
        self.complaints: list[str] = []
        """Messages of the browser's console, and refusals of the page's policy."""

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and return its answer; record the events before the answer."""
        self._number += 1
        await self._socket.send_json({"id": self._number, "method": method, "params": parameters})
        while True:
            message = json.loads((await self._socket.receive()).data)
            if message.get("id") == self._number:
                assert "error" not in message, message
                return dict(message["result"])
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        match message["method"]:
            case "Network.requestWillBeSent":
                self.requested.append(message["params"]["request"]["url"])
            case "Log.entryAdded":
                self.complaints.append(message["params"]["entry"]["text"])
            case "Runtime.exceptionThrown" | "Runtime.consoleAPICalled":
                self.complaints.append(json.dumps(message["params"]))

    async def open(self, url: str, width: int, dark: bool) -> None:
        """A screen of that width, in CSS pixels."""
        for domain in ("Network", "Log", "Runtime", "Page"):
            await self.call(f"{domain}.enable")
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=800, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && !!document.querySelector('main')")

    async def value(self, expression: str) -> Any:
        answer = await self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until the expression is true; the page checks it each time it draws."""
        async with asyncio.timeout(START_S):
            await self.value(
                "new Promise(done => { const look = () => "
                f"({expression}) ? done(true) : requestAnimationFrame(look); look(); }})"
            )

    async def picture(self) -> bytes:
        """A PNG of the whole page."""
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(shot["data"])


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """A fresh browser with one tab; gone with the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            found(), "--headless=new", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
            "--no-sandbox", "--remote-debugging-port=0", f"--user-data-dir={profile}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            port = await asyncio.wait_for(_port(process), START_S)
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    tabs = json.loads(await answer.text())
                (url,) = [tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"]
                async with session.ws_connect(url, max_msg_size=0) as socket:
                    yield Page(socket)
        finally:
            process.kill()
            await process.wait()


async def _port(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    while line := (await process.stderr.readline()).decode():
        if "DevTools listening on ws://" in line:
            return int(line.rpartition("/devtools/")[0].rpartition(":")[2])
    raise AssertionError(f"the browser ended with {await process.wait()}")


def keep(picture: bytes, name: str) -> None:
    """Write a picture to $ATOM_PICTURES, for people to look at."""
    folder = os.environ.get("ATOM_PICTURES")
    if folder:
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(picture)
