"""A headless Chromium, spoken to over its debugging socket: no driver, no library but aiohttp."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

__all__ = ["CHROMIUM", "Page", "page_at"]

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)


class Page:
    """One page of a browser; `complaints` are errors of its scripts and of its content security policy."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = count(1)
        self.complaints: list[str] = []

    async def send(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async for message in self._socket:
            answer = json.loads(message.data)
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(json.dumps(answer["params"]))
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
        raise AssertionError("the browser is gone")

    async def ask(self, expression: str) -> Any:
        """Evaluate an expression on the page."""
        answer = await self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Ask again until the answer is true; the test's time limit is the only other way out."""
        while not (value := await self.ask(expression)):
            await asyncio.sleep(0.05)
        return value

    async def press(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {}
        await self.send("Input.dispatchKeyEvent", type="keyDown", key=key, code=key, windowsVirtualKeyCode=9 if key == "Tab" else 0, **text)
        await self.send("Input.dispatchKeyEvent", type="keyUp", key=key, code=key)

    async def width(self, pixels: int, height: int) -> None:
        """Be as large as a phone, or as a screen."""
        await self.send("Emulation.setDeviceMetricsOverride", width=pixels, height=height, deviceScaleFactor=1, mobile=pixels < 700)

    async def picture(self) -> bytes:
        """Return what is seen, as PNG."""
        return base64.b64decode((await self.send("Page.captureScreenshot", format="png"))["data"])


@asynccontextmanager
async def page_at(url: str, folder: Path) -> AsyncIterator[Page]:
    """Open a page in a browser of its own; the profile is kept in `folder`."""
    assert CHROMIUM is not None, "no Chromium on this machine: run .ci/setup browser, or leave these tests out with -m 'not browser'"
    process = await asyncio.create_subprocess_exec(
        CHROMIUM, *_ARGUMENTS, f"--user-data-dir={folder}", "about:blank", stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        while b"DevTools listening on" not in (line := await process.stderr.readline()):
            assert line, "Chromium ended at once"
        host = line.decode().split("ws://")[1].split("/")[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{host}/json/list") as response:
                target = next(item for item in await response.json() if item["type"] == "page")
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Runtime", "Log", "Page"):
                    await page.send(f"{domain}.enable")
                await page.send("Page.navigate", url=url)
                yield page
    finally:
        process.kill()
        await process.communicate()
