"""core.Frame: frames that know their sender, on every way to receive them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import core
from core.zmtp.zap import ZapReply, ZapRequest
from tests.scenes.raw_octets import GREETING_NULL, WirePeer, command, message, properties

TCP = "tcp://127.0.0.1:*"
PAGE = Path(__file__).parents[2] / "docs" / "core.md"


def test_a_frame_is_bytes() -> None:
    frame = core.Frame(b"abc", more=True, properties={b"user-id": b"ann"})
    assert frame == b"abc" == frame.bytes == bytes(frame.buffer)
    assert type(frame.bytes) is bytes
    assert (frame[0], frame[1:], len(frame), frame.more) == (97, b"bc", 3, True)
    assert frame["User-Id"] == frame.get("user-id") == "ann"
    with pytest.raises(core.ZMQError) as absent:
        frame.get("Peer-Address")
    assert absent.value.errno == core.EINVAL


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("endpoint", [TCP, "inproc://frames"])
async def test_frames_name_the_socket_type_whether_they_were_waited_for_or_not(endpoint: str, early: bool) -> None:
    async with core.Context() as context:
        pull, push = context.socket(core.PULL, linger=0), context.socket(core.PUSH)
        pull.bind(endpoint)
        push.connect(pull.last_endpoint)
        waiting = pull.recv_multipart(copy=False) if early else None
        await push.send_multipart([b"a", b"b"])
        if waiting is None:
            await pull.poll()
            waiting = pull.recv_multipart(copy=False)
        frames = await waiting
        assert frames == [b"a", b"b"]
        assert [frame.get("Socket-Type") for frame in frames] == ["PUSH", "PUSH"]
        await push.send_multipart([b"c", b"d"])
        one = [await pull.recv(copy=False), await pull.recv(copy=False)]
        assert [(bytes(frame), frame.more, frame.get("Socket-Type")) for frame in one] == [
            (b"c", True, "PUSH"),
            (b"d", False, "PUSH"),
        ]


async def test_a_cancelled_wait_for_frames_loses_nothing() -> None:
    async with core.Context() as context:
        pull, push = context.socket(core.PULL), context.socket(core.PUSH)
        pull.bind("inproc://back")
        push.connect("inproc://back")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(pull.recv_multipart(copy=False), 0.01)
        await push.send(b"kept")
        assert await pull.recv_multipart(copy=False) == [b"kept"]


async def test_the_user_id_is_the_authenticators_and_the_address_ours_whatever_a_peer_says() -> None:
    async def judge(request: ZapRequest) -> ZapReply:
        return ZapReply(b"200", b"", b"ann")

    async with core.Context(authenticator=judge) as context:
        for domain, known in ((b"", None), (b"door", "ann")):
            pull = context.socket(core.PULL, linger=0, zap_domain=domain)
            pull.bind(TCP)
            lies = [(b"Socket-Type", b"PUSH"), (b"Peer-Address", b"6.6.6.6"), (b"User-Id", b"root")]
            async with await WirePeer.connect(pull.last_endpoint) as liar:
                await liar.send(GREETING_NULL + command(b"READY", properties(*lies)) + message(b"x"))
                frame = await pull.recv(copy=False)
            assert isinstance(frame, core.Frame)
            assert frame.get("Peer-Address") == "127.0.0.1"
            if known is None:
                with pytest.raises(core.ZMQError):
                    frame.get("User-Id")
            else:
                assert frame.get("User-Id") == known


def test_the_first_example_of_the_page_prints_what_it_says() -> None:
    program = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "[b'worker-1', b'', b'hello']\n"
