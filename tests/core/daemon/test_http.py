"""The HTTP page: its content, hostile names of peers, and the limits of clients."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, cast

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from core.daemon.exit_codes import BadConfig, Unreachable
from core.daemon.http import HTTP, NamedAddress, serve_page
from core.daemon.http_server import prometheus_text
from core.daemon.metrics import SERIES_MAX, Family, Histogram, MetricsPage, Snapshot, Table, WebLimits, figures_page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

EVIL = '<script>alert(1)</script>\n"x"\\'
LOCAL = ("127.0.0.1", 0)


def a_page(reason: str = "", figures: dict[str, float | str | None] | None = None) -> MetricsPage:
    found = {"requests": 7.0, "name": EVIL} if figures is None else figures
    return figures_page("a daemon", "thing", lambda: found, not_ready=lambda: reason, tables=lambda: [Table("T", ("a",), [[EVIL]])])


@asynccontextmanager
async def served(page: MetricsPage, **limits: float) -> AsyncIterator[str]:
    async with serve_page(LOCAL, page, WebLimits(**limits)) as port:  # type: ignore[arg-type]
        yield f"http://127.0.0.1:{port}"


async def get(url: str) -> tuple[int, str, dict[str, str]]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text(), dict(response.headers)


async def raw(url: str, octets: bytes) -> bytes:
    """Send octets, return all that comes back until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    try:
        writer.write(octets)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def test_metrics_are_what_prometheus_reads() -> None:
    async with served(a_page()) as url:
        status, text, headers = await get(f"{url}/metrics")
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert (status, headers["Content-Type"].split(";")[0]) == (200, "text/plain")
    assert families["thing_requests"].samples[0].value == 7
    assert families["thing_name_state"].samples[0].labels == {"value": EVIL}


async def test_series_vanish_with_what_they_describe() -> None:
    figures: dict[str, float | str | None] = {"one": 1.0, "two": 2.0}
    async with served(a_page(figures=figures), keep_s=0) as url:
        assert "thing_two" in (await get(f"{url}/metrics"))[1]
        del figures["two"]
        text = (await get(f"{url}/metrics"))[1]
    assert "thing_one" in text
    assert "thing_two" not in text


def test_histograms_counters_and_a_limit_on_series() -> None:
    many = Family("many", "gauge", "Many.", ("n",), [((str(n),), n) for n in range(SERIES_MAX + 50)])
    took = Family("took", "histogram", "Took.", ("service",), [(("a",), Histogram((0.1, float("inf")), (3, 5), 9.5))])
    count = Family("count", "counter", "Count.", (), [((), 4)])
    families = {f.name: f for f in text_string_to_metric_families(prometheus_text([many, took, count]).decode())}
    assert len(families["many"].samples) == SERIES_MAX
    values = {(s.name, s.labels.get("le")): s.value for s in families["took"].samples}
    assert values == {("took_bucket", "0.1"): 3, ("took_bucket", "+Inf"): 5, ("took_count", None): 5, ("took_sum", None): 9.5}
    assert [s.value for s in families["count"].samples if s.name == "count_total"] == [4]


async def test_health_and_readiness() -> None:
    async with served(a_page()) as url:
        assert (await get(f"{url}/healthz"))[:2] == (200, "alive\n")
        assert (await get(f"{url}/readyz"))[:2] == (200, "ready\n")
    async with served(a_page("draining")) as url:
        assert (await get(f"{url}/healthz"))[0] == 200
        assert (await get(f"{url}/readyz"))[:2] == (503, "draining\n")


async def test_every_answer_carries_the_policy() -> None:
    async with served(a_page()) as url:
        for path in ("/", "/dashboard.js", "/dashboard.css", "/metrics", "/snapshot", "/nothing", "/healthz"):
            headers = (await get(url + path))[2]
            policy = headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["X-Content-Type-Options"] == "nosniff"


async def test_the_page_brings_all_it_needs_and_no_names_of_peers() -> None:
    async with served(a_page()) as url:
        page = (await get(f"{url}/"))[1]
        script = (await get(f"{url}/dashboard.js"))[1]
    assert "http://" not in page + script
    assert "https://" not in page + script
    assert EVIL not in page
    assert "innerHTML" not in script
    assert "insertAdjacent" not in script


async def test_the_live_page_gets_pictures_one_after_the_other() -> None:
    figures: dict[str, float | str | None] = {"n": 0.0}
    async with served(a_page(figures=figures), refresh_s=0.01, keep_s=0) as url:
        async with aiohttp.ClientSession() as session, session.get(f"{url}/live") as response:
            assert response.headers["Content-Type"] == "text/event-stream"
            seen = []
            async for line in response.content:
                if line.startswith(b"data: "):
                    picture = json.loads(line[6:])
                    figures["n"] = 1.0 + (figures["n"] or 0)  # type: ignore[operator]
                    seen.append(picture["figures"]["n"])
                if len(seen) == 3:
                    break
        assert seen == sorted(set(seen))


@pytest.mark.parametrize(("most", "files"), [(4, -1), (64, 128)])
async def test_w8_connections_over_the_limit_are_closed_and_the_others_served(
    monkeypatch: pytest.MonkeyPatch, most: int, files: int
) -> None:
    """The limit is one for each 32 files that the daemon may open, where that is less."""
    monkeypatch.setattr("core.daemon.http_server.files_max", lambda: files)
    async with served(a_page(), connections_max=most) as url:
        port = int(url.rpartition(":")[2])
        held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for reader, writer in held:  # each has a live page, which no new connection replaces
            writer.write(b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        extra = [await raw(url, b"") for _ in range(20)]
        assert extra == [b""] * 20
        for reader, _ in held:
            assert b"data: " in await reader.readuntil(b"data: ")
        for _, writer in held:
            writer.close()


async def test_w7_a_client_that_never_finishes_its_request_is_disconnected() -> None:
    async with served(a_page(), request_s=0.2) as url:
        assert b"200 OK" not in await raw(url, b"GET / HTTP/1.1\r\nHost: ")
        assert b"200 OK" not in await raw(url, b"")
        assert b"200 OK" not in await raw(url, b"POST /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\n")


@pytest.mark.parametrize(
    "octets",
    [
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\nhello",
        b"DELETE /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET /../../etc/passwd HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"\x00\xff" * 1000 + b"\r\n\r\n",
        b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f" + b"\x03\x00NULL" + b"\x00" * 48,
    ],
)
async def test_w1_oversized_and_odd_requests_are_refused(octets: bytes) -> None:
    async with served(a_page(), request_s=2) as url:
        answer = await raw(url, octets)
        assert b" 200 " not in answer[:20]
        assert b"Traceback" not in answer
        assert (await get(f"{url}/healthz"))[0] == 200


async def test_n5_a_live_page_that_does_not_read_is_cut_and_others_are_served() -> None:
    big = MetricsPage("big", str, list, lambda: Snapshot({"x": "y" * 4_000_000}))
    async with served(big, refresh_s=0.01, write_s=0.2) as url:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), limit=1024)
        writer.write(b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert (await get(f"{url}/healthz"))[0] == 200
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            # Nothing was read for so long that the daemon has given up: bytes in flight arrive, the end does not.
            await _wait_until_cut(reader, writer)
        writer.close()


async def _wait_until_cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    transport = cast("asyncio.Transport", writer.transport)
    transport.pause_reading()
    await asyncio.sleep(1.0)
    transport.resume_reading()
    while await reader.read(2**20):
        pass
    raise ConnectionResetError


@pytest.mark.parametrize("turns", range(6))
async def test_a_live_page_asked_for_while_the_server_closes_does_not_keep_it(turns: int) -> None:
    async with served(a_page()) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        await get(f"{url}/healthz")  # connections are accepted in their order: by now ours is
        writer.write(b"GET /live HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        for _ in range(turns):
            await asyncio.sleep(0)
    received = b""
    with suppress(ConnectionError):
        received = await reader.read()
    writer.close()
    assert received.startswith(b"HTTP/1.1 ") or not received


async def test_live_pages_over_the_limit_are_refused_with_a_reason() -> None:
    async with served(a_page(), streams_max=1) as url, aiohttp.ClientSession() as session:
        async with session.get(f"{url}/live") as first:
            await first.content.readline()
            assert (await get(f"{url}/live"))[0] == 503
        assert (await get(f"{url}/healthz"))[0] == 200


async def test_nobody_can_listen_twice() -> None:
    async with served(a_page()) as url:
        port = int(url.rpartition(":")[2])
        with pytest.raises(Unreachable, match="cannot serve HTTP"):
            async with serve_page(("127.0.0.1", port), a_page()):
                pass


async def test_without_an_address_nothing_is_served() -> None:
    async with serve_page(None, a_page()) as port:
        assert port == 0


@pytest.mark.parametrize("text", ["", "localhost", "127.0.0.1:", ":80", "1.2.3.4:99999", "::1:80", "x:y"])
def test_addresses_are_checked(text: str) -> None:
    from click import BadParameter

    with pytest.raises(BadParameter, match="HOST:PORT"):
        HTTP.convert(text, None, None)


def test_addresses() -> None:
    assert HTTP.convert("[::1]:80", None, None) == NamedAddress("::1", 80)
    assert HTTP.convert("0.0.0.0:9090", None, None) == NamedAddress("0.0.0.0", 9090)


def test_a_missing_extra_is_one_clear_line() -> None:
    code = """
import asyncio, sys
sys.modules["aiohttp"] = None
from core.daemon.exit_codes import BadConfig
from core.daemon.metrics import figures_page
from core.daemon.http import serve_page
async def main():
    async with serve_page(("127.0.0.1", 0), figures_page("t", "p", dict)):
        pass
try:
    asyncio.run(main())
except BadConfig as error:
    print(error.format_message())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "--http needs aiohttp, which is not installed; fix: pip install 'majordomo-toolkit[web]'", done.stderr
    assert BadConfig.exit_code == 78


async def test_silent_connections_keep_nobody_out() -> None:
    async with served(a_page(), connections_max=8) as url:
        port = int(url.rpartition(":")[2])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
        silent[3][1].write(b"GET /healthz HTTP/1.1\r\nHost: x")  # has begun, and does not go on
        for _ in range(20):  # probes, each replaces a silent connection
            assert (await get(f"{url}/healthz"))[:2] == (200, "alive\n")
        for _, writer in silent:
            writer.close()


OURS = ["127.0.0.1:9", "[::1]:9", "[::1]", "10.1.2.3", "localhost:1", "LOCALHOST", socket.gethostname(), "named.example:80", ""]
ANOTHERS = ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.evil.example", "named.example.evil"]


@pytest.mark.parametrize("host", OURS)
async def test_addresses_and_names_of_ours_may_be_asked_for(host: str) -> None:
    async with serve_page(NamedAddress("127.0.0.1", 0, ("named.example",)), a_page()) as port:
        answer = await raw(f"x:{port}", b"GET /readyz HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % host.encode())
    assert answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("host", ANOTHERS)
@pytest.mark.parametrize("path", ["/", "/metrics", "/snapshot", "/live", "/healthz"])
async def test_a_name_that_somebody_else_has_pointed_here_is_refused(host: str, path: str) -> None:
    async with serve_page(NamedAddress("127.0.0.1", 0, ("named.example",)), a_page()) as port:
        answer = await raw(f"x:{port}", b"GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (path.encode(), host.encode()))
    assert answer.startswith(b"HTTP/1.1 421")
    assert b"--http-name" in answer


async def _dropped(url: str, limit: str) -> bool:
    return f'http_dropped_total{{limit="{limit}"}} 1.0' in (await get(f"{url}/metrics"))[1]


async def test_what_is_refused_or_closed_is_counted_on_the_page_by_the_limit_it_met() -> None:
    async with served(a_page(), request_s=2, connections_max=1, keep_s=0) as url:
        silent = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        assert not await _dropped(url, "host")
        assert await _dropped(url, "connections_max")
        await raw(url, b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n")
        assert await _dropped(url, "host")
        assert await raw(url, b"GET / HTTP/1.1\r\n") == b""
        assert await _dropped(url, "request_s")
        silent[1].close()


@pytest.mark.parametrize(
    "octets", [b"GARBAGE %d\x00\r\n\r\n", b"\x16\x03\x01%d\r\n\r\n", b"GET / HTTP/9.%d\r\n\r\n", b"GET /%d HTTP/1.1\r\nno\r\n\r\n"]
)
async def test_malformed_requests_fill_no_log(octets: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with served(a_page()) as url:
        for number in range(40):
            await raw(url, octets % number)
        assert 'http_dropped_total{limit="malformed"} 40.0' in (await get(f"{url}/metrics"))[1]
    lines = [record for record in caplog.records if record.name == "core.daemon.http.server"]
    assert [(record.levelname, record.getMessage(), record.exc_info) for record in lines] == [("INFO", "malformed HTTP request", None)]
    assert len(caplog.records) <= 3
