"""The live page of a broker under load, in a real browser.

Its figures are those of MMI, and it outlives the broker.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import mdp
from core.daemon.http import serve_page
from core.daemon.metrics import WebLimits
from mdp.observe.broker_metrics import BrokerMetrics
from tests.scenes.mdp_handlers import echo
from tests.web.browser import page_at

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.timeout(120), pytest.mark.browser]
FIGURE = "document.querySelector('#figures dd[data-name=\"{}\"]')?.dataset.value"
COUNTER = FIGURE.replace("#figures", "#counters")


@asynccontextmanager
async def watched_broker(http: int, endpoint: str = "tcp://127.0.0.1:*", limits: WebLimits | None = None) -> AsyncIterator[mdp.Broker]:
    async with mdp.Broker(start_hold_ms=0) as broker:
        recorder = broker.watch()
        page = BrokerMetrics(broker, recorder, asyncio.get_running_loop().time).page("mdp broker")
        async with serve_page(("127.0.0.1", http), page, limits):
            broker.bind(endpoint)
            yield broker


async def load(client: mdp.Client, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await asyncio.gather(*(client.request("echo", b"x" * 16, wait=True) for _ in range(50)))
        await asyncio.sleep(0.01)


async def stats_of(client: mdp.Client) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((await client.request("mmi.stats", b""))[1])
    return found


async def test_the_page_shows_what_mmi_says_and_outlives_the_broker(tmp_path: Path, free_port: int) -> None:
    async with page_stands(tmp_path) as page:
        async with watched_broker(free_port) as broker, mdp.Worker(broker.endpoints[0], "echo", handler=echo) as _:
            async with mdp.Client(broker.endpoints[0]) as client:
                stop = asyncio.Event()
                loading = asyncio.create_task(load(client, stop))
                await page.go(f"http://127.0.0.1:{free_port}/")
                await page.until(f"Number({FIGURE.format('replies')}) > 200")
                first = await page.ask(FIGURE.format("replies"))
                await page.until(f"Number({FIGURE.format('replies')}) > {first}")  # it is live
                with pytest.raises(mdp.NoService):
                    await client.request("<script>alert(1)</script>", b"x")
                stop.set()
                await loading
                stats = await stats_of(client)
                await page.until(f"{FIGURE.format('replies')} === '{stats['replies']}'")
                await page.until(f"{COUNTER.format('error_no_service')} === '1'")  # either may be the last to change
                shown = await page.ask(
                    "Object.fromEntries([...document.querySelectorAll('#counters dd')].map(d => [d.dataset.name, Number(d.dataset.value)]))"
                )
                # What MMI's own question and the time that passes change.
                moving = {"mmi", "clients", "heartbeats_received", "heartbeats_sent", "client_heartbeats"}
                assert {name: value for name, value in shown.items() if name not in moving} == {
                    name: value for name, value in stats.items() if name not in moving
                }
                services = await page.ask("[...document.querySelectorAll('#tables table')][0].tBodies[0].rows[0].cells[4].textContent")
                assert services.replace(",", "") == str(stats["replies"])
                # The name of a service is text and nothing else.
                assert "<script>" in await page.until("document.querySelector('#tables').textContent.match('<script>')?.[0]")
                assert await page.ask("document.querySelectorAll('script').length") == 1
        await page.until("document.querySelector('#state')?.textContent.includes('no connection')")
        async with watched_broker(free_port):
            await page.until("document.querySelector('#state')?.textContent === 'serving'")
            await page.until(f"{FIGURE.format('replies')} === '0'")
        policy = [one for one in page.complaints if "Content Security Policy" in one or "exceptionThrown" in one]
        assert not policy


async def test_a_page_that_gets_no_news_says_so_and_asks_again(tmp_path: Path, free_port: int) -> None:
    """A daemon that stands still ends no connection.

    What was shown last must not look as if it were of now.
    """
    async with watched_broker(free_port, limits=WebLimits(refresh_s=3600)), page_stands(tmp_path) as page:
        await page.go(f"http://127.0.0.1:{free_port}/")
        await page.until("document.querySelector('#state')?.textContent === 'serving'")
        await page.until("document.querySelector('#state')?.textContent.includes('no news')")
        await page.until("document.querySelector('#state')?.textContent === 'serving'")


async def test_it_is_used_by_keyboard_and_read_on_a_phone(tmp_path: Path, free_port: int) -> None:
    async with watched_broker(free_port) as broker, mdp.Worker(broker.endpoints[0], "echo", handler=echo), page_stands(tmp_path) as page:
        await page.width(360, 740)
        await page.go(f"http://127.0.0.1:{free_port}/")
        await page.until("document.querySelectorAll('#tables td').length > 5")
        assert await page.ask("document.documentElement.scrollWidth <= window.innerWidth")
        await page.press("/")
        assert await page.ask("document.activeElement.id") == "filter"
        await page.press("z")
        await page.until("document.querySelectorAll('#tables tbody')[0].textContent === 'none'")
        found = []
        for _ in range(6):
            await page.press("Tab")
            found.append(await page.ask("document.activeElement.id || document.activeElement.className || document.activeElement.tagName"))
        assert found[0] == "pause"
        assert {"scroll", "SUMMARY"} <= set(found)


@asynccontextmanager
async def page_stands(folder: Path) -> AsyncIterator[Any]:
    async with page_at("about:blank", folder / "profile") as page:
        yield page
