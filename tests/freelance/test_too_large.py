"""A request that no server takes fails at once with both numbers; no peer is disconnected, and others are answered."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

import pytest

import core
import freelance
from core.rpc.handlers import echo
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scenes.programs import Programs

Model = Literal[1, 2, 3]
MODELS: list[Model] = [1, 2, 3]
FRAMES_MAX = 1024
ENVELOPES = {1: 1, 2: 2, 3: 1}  # frames before the body
QUICK: dict[str, Any] = {"timeout": 20.0, "try_timeout": 5.0, "hedge": None}


def server(path: Path, model: Model, handler: Any = echo, **options: Any) -> freelance.Server:
    return freelance.Server(f"ipc://{path}", handler, model=model, socket_options=options)


@pytest.mark.parametrize("model", [1, 3])
async def test_the_largest_request_is_answered_and_one_more_refused(tmp_path: Path, model: Model) -> None:
    most = FRAMES_MAX - ENVELOPES[model]
    async with server(tmp_path / "s", model) as one, freelance.Client([one.endpoint], model=model, **QUICK) as client:
        assert await client.request(*[b"x"] * most) == [b"x"] * most
        with pytest.raises(freelance.TooLarge) as caught:
            await client.request(*[b"x"] * (most + 1))
        assert (caught.value.what, caught.value.size, caught.value.limit) == ("frames of the request", most + 1, most)
        assert isinstance(caught.value, core.MessageTooLarge)
        assert await client.request(b"again") == [b"again"]


@pytest.mark.parametrize("model", MODELS)
async def test_octets_and_frames_of_few_are_counted_too(tmp_path: Path, model: Model) -> None:
    """Fast requests as well."""
    strict = {"maxmsgsize": 100}
    async with server(tmp_path / "s", model, **strict) as one, freelance.Client([one.endpoint], model=model, **QUICK) as client:
        assert await client.request(bytes(100)) == [bytes(100)]
        for size in (101, 5000):
            with pytest.raises(freelance.TooLarge) as caught:
                await client.request(bytes(size))
            assert (caught.value.size, caught.value.limit) == (size, 100)
        assert await client.request(b"again") == [b"again"]


@pytest.mark.parametrize("model", MODELS)
async def test_others_in_flight_are_answered_once(tmp_path: Path, model: Model) -> None:
    runs: list[bytes] = []
    go = asyncio.Event()

    async def handler(body: list[bytes]) -> list[bytes]:
        runs.append(body[0])
        await go.wait()
        return body

    async with (
        server(tmp_path / "s", model, handler, max_message_bytes=1000) as one,
        freelance.Client([one.endpoint], model=model, **QUICK) as client,
    ):
        others = [asyncio.create_task(client.request(b"%d" % n)) for n in range(3)]
        while len(runs) < 3:
            await asyncio.sleep(0.001)
        with pytest.raises(freelance.TooLarge):
            await client.request(bytes(2000))
        go.set()
        assert await asyncio.gather(*others) == [[b"0"], [b"1"], [b"2"]]
    assert sorted(runs) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("model", MODELS)
async def test_what_one_server_does_not_take_another_does(tmp_path: Path, model: Model) -> None:
    async def first(body: list[bytes]) -> bytes:
        return b"first"

    async def second(body: list[bytes]) -> bytes:
        return b"second"

    async with (
        server(tmp_path / "1", model, first, max_message_bytes=1000) as one,
        server(tmp_path / "2", model, second) as two,
        freelance.Client([one.endpoint, two.endpoint], model=model, **QUICK) as client,
    ):
        assert await client.request(b"x", timeout=100) in ([b"first"], [b"second"])
        while model != 1 and len(client.live if model == 3 else [one, two]) < 2:
            await asyncio.sleep(0.001)
        assert await client.request(bytes(2000)) == [b"second"]


async def test_the_envelope_of_model_2_leaves_a_frame_less(tmp_path: Path) -> None:
    async with server(tmp_path / "s", 2, max_parts=2) as one, freelance.Client([one.endpoint], model=2, **QUICK) as client:
        with pytest.raises(freelance.TooLarge) as caught:
            await client.request(bytes(300))
        assert (caught.value.what, caught.value.size, caught.value.limit) == ("frames of the request", 1, 0)


async def test_a_server_that_does_not_tell_its_limits_gets_frames_as_well(tmp_path: Path) -> None:
    async with server(tmp_path / "s", 3, tell_limits=0) as one, freelance.Client([one.endpoint], **QUICK) as client:
        assert await client.request(bytes(3000), b"x") == [bytes(3000), b"x"]


async def test_octets_of_model_1_have_no_envelope(tmp_path: Path) -> None:
    async with server(tmp_path / "s", 1, max_message_bytes=100) as one, freelance.Client([one.endpoint], model=1, **QUICK) as client:
        assert await client.request(bytes(100)) == [bytes(100)]
        with pytest.raises(freelance.TooLarge) as caught:
            await client.request(bytes(101))
        assert (caught.value.size, caught.value.limit) == (101, 100)


async def test_a_request_that_only_a_removed_server_took_ends_at_once(tmp_path: Path) -> None:
    async with (
        server(tmp_path / "a", 3, lambda body: None) as ample,
        server(tmp_path / "b", 3, maxmsgsize=100) as strict,
        freelance.Client([ample.endpoint, strict.endpoint], timeout=1000, try_timeout=500, hedge=None) as client,
    ):
        await eventually(lambda: len(client.live) == 2)
        reply = asyncio.ensure_future(client.request(bytes(5000)))
        await eventually(lambda: ample.counters["accepted"])
        client.remove_server(ample.endpoint)
        with pytest.raises(freelance.TooLarge):
            await reply


@pytest.mark.parametrize("model", [1, 3])
async def test_a_reply_its_client_does_not_take_disconnects_no_peer(tmp_path: Path, model: Model) -> None:
    """The protocol has no message for it: the client gives up, the server logs the reason."""
    runs: list[bytes] = []

    async def handler(body: list[bytes]) -> list[bytes]:
        runs.append(body[0])
        return [b"x"] * 2000 if body == [b"many"] else body

    async with server(tmp_path / "s", model, handler) as one:
        async with freelance.Client([one.endpoint], model=model, timeout=2.0, try_timeout=1.0) as client:
            assert await client.request(b"one", timeout=100) == [b"one"]
            with pytest.raises(freelance.NoServer):
                await client.request(b"many")
            assert await client.request(b"two", timeout=100) == [b"two"]
        assert 1 <= runs.count(b"many") <= 4


def test_on_the_command_line(programs: Programs, tmp_path: Path) -> None:
    serving = programs.start("freelance", "serve", "--bind", f"ipc://{tmp_path}/s")
    serving.said("server runs")
    done = programs.run("freelance", "call", "--to", f"ipc://{tmp_path}/s", "--timeout", "20", *["x"] * 1500)
    assert (done.code, done.out) == (1, b"")
    assert "frames of the request: 1500, the peer takes 1023" in done.err
