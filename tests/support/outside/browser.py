"""A headless Chromium, driven by its own protocol (DevTools) over a web socket."""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
import subprocess
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from ..jobs.processes import ENOUGH_SECONDS, wait_until

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
OPTIONS = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-extensions", "--hide-scrollbars", "--mute-audio"),
)
RESPONSE_SECONDS = 60.0


def find_browser() -> str | None:
    """The program, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Tab:
    """One page. `complaints` are what it logged as errors, and what its policy kept it from."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.complaints: list[str] = []
        self.requests: list[str] = []

    async def receive(self) -> None:
        """Takes what the browser sends, until it is gone."""
        async for message in self._socket:
            body = message.json()
            if (waiting := self._waiting.pop(body.get("id", 0), None)) is not None:
                waiting.set_result(body)
            elif body.get("method") == "Runtime.exceptionThrown":
                self.complaints.append(str(body["params"]["exceptionDetails"]))
            elif body.get("method") == "Log.entryAdded":
                self.complaints.append(str(body["params"]["entry"]["text"]))
            elif body.get("method") == "Network.requestWillBeSent":
                self.requests.append(str(body["params"]["request"]["url"]))

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        response: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = response
        await self._socket.send_json({"id": number, "method": method, "params": params})
        body = await asyncio.wait_for(response, RESPONSE_SECONDS)
        assert "error" not in body, body["error"]
        result: dict[str, Any] = body["result"]
        return result

    async def open_page(self, url: str, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Goes to a page with a window of this size."""
        await self.size(width, height)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.ask("Emulation.setEmulatedMedia", features=[theme])
        await self.ask("Page.navigate", url=url)

    async def size(self, width: int, height: int) -> None:
        """Another window size; up to 560 it is a phone's."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if width <= 560 else 1,
            mobile=width <= 560,
        )

    async def value(self, expression: str) -> Any:
        result = await self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        return result["result"].get("value")

    async def until(self, expression: str, seconds: float = ENOUGH_SECONDS) -> None:
        """Waits until it is true."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while not await self.value(expression):
            if loop.time() > end:
                text = await self.value("document.body.innerText")
                raise AssertionError(f"within {seconds:g} s it was not so: {expression}; the page: {text}")
            await asyncio.to_thread(threading.Event().wait, 0.05)

    async def picture(self, path: Path) -> None:
        taken = await self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(taken["data"]))


@asynccontextmanager
async def browser(profile: Path) -> AsyncIterator[Tab]:
    """A browser with one empty page, ended with all of its processes afterwards."""
    program = find_browser()
    assert program is not None
    process = await asyncio.create_subprocess_exec(
        *(program, *OPTIONS, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        port_file = profile / "DevToolsActivePort"
        await asyncio.to_thread(
            wait_until, lambda: port_file.exists() and port_file.read_text().count("\n"), "it listens", 30.0
        )
        port = port_file.read_text().splitlines()[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as response:
                pages = [page for page in await response.json() if page["type"] == "page"]
            async with session.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                tab = Tab(socket)
                receiving = asyncio.create_task(tab.receive())
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await tab.ask(f"{domain}.enable")
                yield tab
                receiving.cancel()
                await asyncio.gather(receiving, return_exceptions=True)
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), RESPONSE_SECONDS)
