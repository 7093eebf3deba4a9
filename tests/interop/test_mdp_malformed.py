"""Any message of a libzmq DEALER: our broker continues and serves the others (MDP-45, fault B1, faults.md 2)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.interop.majordomo import Client01, Worker01, echo_worker
from tests.scenes.waiting import eventually
from tests.spec.test_mdp_broker_malformed import ANSWERED, CLIENT, WORKER

if TYPE_CHECKING:
    import mdp
    from tests.interop.ends import Foreign

MALFORMED: dict[str, list[bytes]] = {
    **{f"client: {name}": frames for name, (frames, _) in CLIENT.items()},
    **{f"client: {name}": frames for name, frames in ANSWERED.items()},
    **{f"worker: {name}": frames for name, (frames, _) in WORKER.items()},
    "a thousand frames": [b"", b"MDPC01", b"nobody", *[b"x"] * 997],
    "a thousand empty frames": [b""] * 1000,
    "path in a name": [b"", b"MDPC01", b"../../etc/passwd", b"x"],
    "HTTP": [b"GET / HTTP/1.1\r\n\r\n"],
    "pickle": [b"\x80\x04\x95\x00.", b"cos\nsystem\n."],
    "DISCONNECT for somebody else": [b"", b"MDPW01", b"\x05", b"somebody"],
    "REPLY to the empty address": [b"", b"MDPW01", b"\x03", b"", b"", b"x"],
    "REPLY to a generated address": [b"", b"MDPW01", b"\x03", b"\x00\x00\x00\x00\x01", b"", b"x"],
}
ASK = [b"", b"MDPC01", b"mmi.service", b"echo"]


@pytest.mark.parametrize("frames", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_messages(frames: list[bytes], where: str, foreign: Foreign) -> None:
    """The rogue asks afterwards on the same connection: its answer shows that the broker has taken the message before."""
    rogue = foreign("DEALER")
    rogue.connect(where)
    async with echo_worker(foreign, where):
        client = Client01(foreign, where)
        assert await client.request(b"echo", b"before") == [b"before"]
        await rogue.send(*frames)
        await rogue.send(*ASK)
        while (answer := await rogue.recv()) != [*ASK[:3], b"200"]:
            assert b"BAD_REQUEST" in answer or answer[-1] in (b"\x05", b"\x06", b"MDPW03\x07")
        assert await client.request(b"echo", b"after") == [b"after"]


@pytest.mark.parametrize("count", [1025, 65_536])
async def test_more_frames_than_a_message_may_have(count: int, where: str, foreign: Foreign) -> None:
    """The connection is closed before the frames are kept; libzmq comes back on a new one."""
    rogue = foreign("DEALER")
    rogue.connect(where)
    async with echo_worker(foreign, where):
        client = Client01(foreign, where)
        await rogue.send(b"", b"MDPC01", *[b""] * count)
        assert await client.request(b"echo", b"after") == [b"after"]
        assert await Client01(foreign, where).request(b"echo", b"newcomer") == [b"newcomer"]


async def test_a_flood_of_heartbeats_and_ready(where: str, foreign: Foreign) -> None:
    """A worker that beats without end, one that registers without end: nobody else notices."""
    flood = foreign("DEALER")
    flood.connect(where)
    async with echo_worker(foreign, where):
        client = Client01(foreign, where)
        await flood.run(lambda: [flood.socket.send_multipart([b"", b"MDPW01", b"\x04"]) for _ in range(5000)])
        assert await client.request(b"echo", b"during") == [b"during"]
        await flood.run(lambda: [flood.socket.send_multipart([b"", b"MDPW01", b"\x01", b"echo"]) for _ in range(5000)])
        assert await client.request(b"echo", b"after") == [b"after"]


async def test_a_client_that_returns_under_its_name_gets_no_old_reply(broker: mdp.Broker, where: str, foreign: Foreign) -> None:
    """faults.md 2: what was asked on the old connection is not answered on the new one."""
    worker = Worker01(foreign, where)
    await worker.ready(b"slow")
    gone = foreign("DEALER", routing_id=b"same")
    gone.connect(where)
    await gone.send(b"", b"MDPC01", b"slow", b"old")
    address, _ = await worker.work()
    gone.close()
    await eventually(lambda: b"same" not in broker.machine.request_table.clients)
    back = foreign("DEALER", routing_id=b"same")
    back.connect(where)
    await back.send(*ASK)
    assert await back.recv() == [*ASK[:3], b"404"]
    await worker.reply(address, b"too late")
    await back.send(b"", b"MDPC01", b"slow", b"new")
    address, body = await worker.work()
    assert body == [b"new"]
    await worker.reply(address, b"answer")
    assert await back.recv() == [b"", b"MDPC01", b"slow", b"answer"]
