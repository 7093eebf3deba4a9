"""Headers of stored requests: given to the worker, kept over failures and restarts, refused where nothing would pass them on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack
import pytest

import mdp
import titanic
from titanic.errors import OptionsNotSupported
from titanic.journal.record_bodies import Request, encode_request, request_frames, request_headers
from titanic.store.index.limits import DispatchOptions
from titanic.wire import tsp

if TYPE_CHECKING:
    from pathlib import Path

HEADERS = {"tenant": "zh", "text": "Grüezi=1"}
FRAMES = b"\x01\x04echo\x00\x02hi"
FAST = DispatchOptions(retry_s=0.02, retry_max_s=0.1, probe_s=0.02, probe_max_s=0.1)


@pytest.mark.parametrize("owner", [b"", b"ann"])
@pytest.mark.parametrize("key", [b"", b"k" * 255])
def test_a_record_with_headers_is_read_and_one_without_is_what_it_was(owner: bytes, key: bytes) -> None:
    packed = tsp.pack_headers(HEADERS)
    body = encode_request(1, 2, 3, 4, key, FRAMES, owner, packed)
    plain = encode_request(1, 2, 3, 4, key, FRAMES, owner)
    assert len(body) == len(plain) + 2 + len(packed)
    assert Request.decode(body) == Request.decode(plain)._replace(frames_at=len(body) - len(FRAMES))
    assert request_frames(body) == request_frames(plain) == b"\x00\x02hi"
    assert tsp.unpack_headers(request_headers(body)) == HEADERS
    assert request_headers(plain) == tsp.pack_headers({}) == b""
    assert tsp.unpack_headers(b"") == {}
    head = len(body) - len(FRAMES)
    for end in range(28, head):
        with pytest.raises(ValueError, match="too short"):
            Request.decode(body[:end])


@pytest.mark.parametrize("wrong", [{"": "x"}, {"x": 1}, {"x": "y" * 4096}, {str(number): "" for number in range(33)}, [], None])
def test_headers_that_are_none_are_refused(wrong: object) -> None:
    asked = [tsp.OPTIONS_MARK, msgpack.packb({"headers": wrong}), b"echo", b"x"]
    with pytest.raises(titanic.BadRequest):
        tsp.parse_request(asked)
    with pytest.raises(ValueError, match="headers"):
        tsp.unpack_headers(msgpack.packb(wrong))


async def test_the_worker_gets_them_after_a_failure_and_a_restart_too(tmp_path: Path) -> None:
    seen: list[dict[str, str]] = []

    async def handler(request: mdp.Request) -> bytes:
        seen.append(dict(request.headers))
        if request.headers == HEADERS and seen.count(HEADERS) == 1:
            raise RuntimeError("once")
        return b"done"

    def store() -> titanic.Service:
        opened = titanic.Store(titanic.RealDisk(tmp_path / "store"), titanic.JournalOptions(log=titanic.LogOptions(reserve_bytes=4096)))
        return titanic.Service(endpoint, opened, titanic.ServiceOptions(dispatch=FAST))

    async with mdp.Broker() as broker:
        endpoint = broker.bind("tcp://127.0.0.1:*")
        async with titanic.Client(endpoint) as client:
            async with store():
                first = await client.submit("echo", b"x", headers=HEADERS, key="order-1")
                assert (await client.submit("echo", b"x", headers={"tenant": "be"}, key="order-1")).uuid == first.uuid
                plain = await client.submit("echo", b"y")
            async with store(), mdp.Worker(endpoint, "echo", handler=handler):
                assert await first.result(30) == await plain.result(30) == [b"done"]
                assert await (await client.submit("echo", headers={"a": "b"})).result(30) == [b"done"]
                with pytest.raises(ValueError, match="headers"):
                    await client.submit("echo", headers={"": "b"})
    assert sorted(seen, key=len) == [{}, {"a": "b"}, HEADERS, HEADERS]


async def test_a_store_without_them_is_not_sent_any() -> None:
    """A store that knows options and no headers, as those before were."""

    async def old(request: mdp.Request) -> list[bytes]:
        assert request.body == [tsp.EXTENSIONS]
        return [tsp.OK, b"options"]

    async with mdp.Broker() as broker:
        endpoint = broker.bind("tcp://127.0.0.1:*")
        async with mdp.Worker(endpoint, "titanic.reply", handler=old), titanic.Client(endpoint) as client:
            with pytest.raises(OptionsNotSupported, match="headers"):
                await client.submit("echo", b"x", headers=HEADERS)
