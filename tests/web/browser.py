"""A headless Chromium, spoken to over its debugging socket: no driver, no library but aiohttp."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections import deque
from contextlib import asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import aiohttp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

__all__ = ["CHROMIUM", "Page", "page_at"]

CHROMIUM = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
PATIENCE_S = 50.0  # of one `until`, within the time of a test
SAID_MAX = 20  # lines that a browser said last
_ARGUMENTS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    # The page is not visible: its timers and drawing must not be throttled for that.
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-renderer-backgrounding",
    "--no-first-run",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)


class Page:
    """One page of a browser; `complaints` are errors of its scripts and of its content security policy."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, said: Sequence[str]) -> None:
        self._socket = socket
        self._said = said  # by the browser, about itself
        self._numbers = count(1)
        self.complaints: list[str] = []

    async def send(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol and return its result."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async for message in self._socket:
            answer = json.loads(message.data)
            event = answer.get("method")
            if event in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.complaints.append(json.dumps(answer["params"]))
            # Nothing that is asked afterwards would ever be answered.
            assert event not in ("Inspector.targetCrashed", "Inspector.detached"), f"the page is gone: {answer}; {self._last_words()}"
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
        raise AssertionError(f"the browser is gone; {self._last_words()}")

    def _last_words(self) -> str:
        return f"complaints: {self.complaints[-5:]}; the browser said: {[*self._said]}"

    async def go(self, url: str) -> None:
        """Go to a page."""
        answer = await self.send("Page.navigate", url=url)
        assert "errorText" not in answer, f"{url}: {answer}"

    async def ask(self, expression: str) -> Any:
        """Evaluate an expression on the page."""
        answer = await self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str, shown: str = "document.body.innerText") -> Any:
        """Ask until the answer is true; at the end of the time show the last answer, and what is `shown`."""
        value: Any = "no answer"
        seen: Any = "not known"
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not (value := await self.ask(expression)):
                    seen = await self.ask(shown)
                    await asyncio.sleep(0.05)
        except TimeoutError:
            text = f"after {PATIENCE_S:g} s {expression} is {value!r}, and there is {seen!r}; {self._last_words()}"
            raise AssertionError(text) from None
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
        CHROMIUM, *_ARGUMENTS, f"--user-data-dir={folder}", "about:blank", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    said: deque[str] = deque(maxlen=SAID_MAX)
    reading: asyncio.Task[None] | None = None
    try:
        assert process.stderr is not None
        while b"DevTools listening on" not in (line := await process.stderr.readline()):
            assert line, "Chromium ended at once"
        reading = asyncio.create_task(_note(process.stderr, said))
        host = line.decode().split("ws://")[1].split("/")[0]
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://{host}/json/list") as response:
                target = next(item for item in await response.json() if item["type"] == "page")
            async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket, said)
                for domain in ("Runtime", "Log", "Page", "Inspector"):
                    await page.send(f"{domain}.enable")
                await page.go(url)
                yield page
    finally:
        process.kill()
        if reading is not None:
            await reading
        await process.wait()


async def _note(stderr: asyncio.StreamReader, said: deque[str]) -> None:
    """Read what the browser says about itself: it waits for ever once its pipe is full."""
    while octets := await stderr.read(65536):
        said.extend(line[:300] for line in octets.decode(errors="replace").splitlines())
