"""Rules MON-01 to MON-04: what a monitor sees, in which order, and in libzmq's form."""

from __future__ import annotations

import asyncio
import struct
import sys
from typing import TYPE_CHECKING, Any

import pytest
import zmq
from zmq.utils.monitor import parse_monitor_message

import core
from core.monitor import recv_monitor_message
from core.sockets.monitor import parse_monitor_message as parse
from tests.scenes.raw_octets import GREETING_NULL, WirePeer, command, frame, ready
from tests.scenes.waiting import PATIENCE_S, Watch

if TYPE_CHECKING:
    from core.sockets.monitor import MonitorStream
    from tests.spec.conftest import Make

TCP = "tcp://127.0.0.1:*"


async def names(stream: MonitorStream, count: int) -> list[str]:
    """Names of the next events."""
    async with asyncio.timeout(PATIENCE_S):
        return [(await anext(stream)).event.name or "" for _ in range(count)]


def test_mon_01_the_numbers_are_libzmqs() -> None:
    ours = {event.name: int(event) for event in core.Event}
    theirs = {event.name: int(event) for event in zmq.Event}
    assert {name: theirs[name] for name in ours if name in theirs and name != "ALL"} == {
        name: value for name, value in ours.items() if name != "ALL"
    }


async def test_mon_01_values_are_descriptors_delays_and_errnos(make: Make) -> None:
    router = make(core.ROUTER)
    watch = Watch(router)
    router.bind(TCP)
    with pytest.raises(core.AddressInUse):
        router.bind(router.last_endpoint)
    dealer = make(core.DEALER, reconnect_ivl=1)
    other = Watch(dealer)
    dealer.connect(router.last_endpoint)
    await watch.peers()
    await other.peers()
    value = {event.event: event.value for event in (*watch.events, *other.events)}
    assert value[core.Event.BIND_FAILED] == core.EADDRINUSE
    assert value[core.Event.CONNECT_DELAYED] == core.EINPROGRESS
    assert value[core.Event.HANDSHAKE_SUCCEEDED] == 0
    for event in (core.Event.LISTENING, core.Event.ACCEPTED, core.Event.CONNECTED):
        assert value[event] > 2
    router.close()
    await other.until(core.EVENT_CONNECT_RETRIED)
    (retried,) = [event for event in other.events if event.event == core.Event.CONNECT_RETRIED][:1]
    assert retried.value in (1, 2)


async def test_mon_02_two_frames_on_a_pair_readable_by_libzmqs_own_parser(make: Make) -> None:
    router = make(core.ROUTER)
    monitor = router.get_monitor_socket()
    router.bind(TCP)
    frames = await monitor.recv_multipart()
    event, value = struct.unpack("<HI" if sys.byteorder == "little" else ">HI", frames[0])
    assert (event, frames[1]) == (core.EVENT_LISTENING, router.last_endpoint.encode())
    theirs: dict[str, Any] = dict(parse_monitor_message(frames))
    assert theirs == parse(frames) == {"event": core.EVENT_LISTENING, "value": value, "endpoint": frames[1]}


async def test_mon_02_only_the_events_asked_for_and_none_after_it_is_disabled(make: Make) -> None:
    router = make(core.ROUTER)
    router.monitor("inproc://watch", core.EVENT_HANDSHAKE_SUCCEEDED)
    reader = make(core.PAIR, connect="inproc://watch")
    router.bind(TCP)
    make(core.DEALER, connect=router.last_endpoint)
    assert (await recv_monitor_message(reader))["event"] == core.EVENT_HANDSHAKE_SUCCEEDED
    router.disable_monitor()
    router.bind(TCP)
    assert not reader.readable()
    router.monitor("inproc://watch")  # the name is free again
    with pytest.raises(core.ZMQError) as refused:
        router.monitor(TCP)
    assert refused.value.errno == core.EPROTONOSUPPORT


async def test_mon_02_a_reader_that_does_not_read_costs_no_more_than_its_mark(make: Make) -> None:
    router = make(core.ROUTER)
    router.monitor("inproc://lazy")
    pair = router.monitors.pair
    assert pair is not None
    for _ in range(10):
        router.emit(core.Event.LISTENING, 1, "nobody is connected")
    assert pair.missed == 10
    reader = make(core.PAIR, connect="inproc://lazy", rcvhwm=1)
    for _ in range(2000):
        router.emit(core.Event.LISTENING, 1, "x")
    assert pair.missed == 10 + 2000 - 1001
    assert (await recv_monitor_message(reader))["value"] == 1


@pytest.mark.parametrize("frames", [[], [b"x"], [b"12345", b""], [b"123456", b"", b""]])
def test_mon_02_other_frames_are_refused(frames: list[bytes]) -> None:
    with pytest.raises(core.ZMQError) as refused:
        parse(frames)
    assert refused.value.errno == core.EINVAL


async def test_mon_03_a_connecter_and_its_binder(make: Make) -> None:
    router, dealer = make(core.ROUTER), make(core.DEALER, identity=b"me")
    at_router, at_dealer = router.events(), dealer.events()
    router.bind(TCP)
    dealer.connect(router.last_endpoint)
    assert await names(at_router, 3) == ["LISTENING", "ACCEPTED", "HANDSHAKE_SUCCEEDED"]
    assert await names(at_dealer, 3) == ["CONNECT_DELAYED", "CONNECTED", "HANDSHAKE_SUCCEEDED"]
    router.close()
    assert await names(at_router, 2) == ["CLOSED", "MONITOR_STOPPED"]
    lost = ["DISCONNECTED", "CONNECT_RETRIED", "CONNECT_DELAYED", "CLOSED", "CONNECT_RETRIED", "CONNECT_DELAYED"]
    assert await names(at_dealer, 6) == lost
    dealer.close()
    rest = [event.event async for event in at_dealer]
    assert rest[-1] == core.Event.MONITOR_STOPPED
    assert [event async for event in at_router] == []


async def test_mon_03_libzmq_tells_the_same_story(make: Make) -> None:
    """The same conversation, watched at libzmq's ends by its own monitor."""
    ours = make(core.ROUTER)
    watch = Watch(ours)
    ours.bind(TCP)
    with zmq.Context() as context, context.socket(zmq.DEALER) as theirs:
        theirs.linger = 0
        with theirs.get_monitor_socket() as monitor:
            theirs.connect(ours.last_endpoint)
            await watch.peers()
            seen = []
            while "HANDSHAKE_SUCCEEDED" not in seen:
                frames = await asyncio.to_thread(monitor.recv_multipart)
                seen.append(zmq.Event(parse_monitor_message(frames)["event"]).name)
            theirs.disable_monitor()
        assert seen[-3:] == ["CONNECT_DELAYED", "CONNECTED", "HANDSHAKE_SUCCEEDED"]
    assert [event.event.name for event in watch.events][:3] == ["LISTENING", "ACCEPTED", "HANDSHAKE_SUCCEEDED"]


async def test_events_say_who_it_was(make: Make) -> None:
    router = make(core.ROUTER, bind=TCP)
    watch = Watch(router)
    dealer = make(core.DEALER, connect=router.last_endpoint, identity=b"worker-1")
    await watch.peers()
    dealer.close()
    await watch.lost()
    who = {event.event: (event.peer, event.identity) for event in watch.events}
    assert who[core.Event.ACCEPTED] == ("127.0.0.1", b"")
    assert who[core.Event.HANDSHAKE_SUCCEEDED] == who[core.Event.DISCONNECTED] == ("127.0.0.1", b"worker-1")


async def test_a_reader_of_events_that_does_not_read_loses_the_oldest_and_counts_them(make: Make) -> None:
    router = make(core.ROUTER)
    stream = router.events(limit=3)
    for number in range(5):
        router.emit(core.Event.LISTENING, number, "x")
    stream.close()
    assert [event.value async for event in stream] == [2, 3, 4]
    assert stream.missed == 2


async def test_two_readers_of_the_same_events_are_both_woken_by_close(make: Make) -> None:
    router = make(core.ROUTER)
    stream = router.events()
    readers = [asyncio.ensure_future(anext(stream, None)) for _ in range(2)]
    await asyncio.sleep(0)
    router.bind(TCP)
    await asyncio.wait(readers, return_when=asyncio.FIRST_COMPLETED)
    assert [reader.done() for reader in readers] == [True, False]
    stream.close()
    first, second = await asyncio.gather(*readers)
    assert first is not None
    assert first.event == core.Event.LISTENING
    assert second is None


async def test_a_reader_that_waits_is_woken_by_an_event_and_by_close(make: Make) -> None:
    router = make(core.ROUTER)
    stream = router.events(core.EVENT_LISTENING)
    waiting = asyncio.ensure_future(anext(stream))
    await asyncio.sleep(0)
    router.bind(TCP)
    assert (await waiting).endpoint == router.last_endpoint
    rest = asyncio.ensure_future(names(stream, 2))
    await asyncio.sleep(0)
    stream.close()
    with pytest.raises(StopAsyncIteration):
        await anext(stream)
    with pytest.raises((StopAsyncIteration, RuntimeError)):
        await rest


CODES = {
    # what a peer sends after our greeting: the code of the event
    "MESSAGE before READY": (GREETING_NULL + frame(b"x", 1), core.ProtocolErrorCode.ZMTP_UNEXPECTED_COMMAND),
    "READY of a length that lies": (
        GREETING_NULL + command(b"READY", b"\x0bSocket-Type\x00\x00\xff\xff"),
        core.ProtocolErrorCode.ZMTP_INVALID_METADATA,
    ),
    "a type that does not fit": (GREETING_NULL + ready(b"PUB"), core.ProtocolErrorCode.ZMTP_INVALID_METADATA),
    "another mechanism": (
        GREETING_NULL[:12] + b"PLAIN".ljust(20, b"\0") + GREETING_NULL[32:],
        core.ProtocolErrorCode.ZMTP_MECHANISM_MISMATCH,
    ),
}


@pytest.mark.parametrize("case", CODES)
async def test_mon_04_protocol_errors_have_a_code_and_a_reason(make: Make, case: str) -> None:
    octets, code = CODES[case]
    router = make(core.ROUTER, bind=TCP)
    watch = Watch(router)
    async with await WirePeer.connect(router.last_endpoint) as peer:
        await peer.send(octets)
        await watch.until(core.EVENT_HANDSHAKE_FAILED_PROTOCOL)
    (failed,) = [event for event in watch.events if event.event == core.Event.HANDSHAKE_FAILED_PROTOCOL]
    assert failed.value == code
    assert failed.reason
    assert failed.peer == "127.0.0.1"


def test_mon_04_the_codes_are_libzmqs() -> None:
    for code in core.ProtocolErrorCode:
        family, _, name = code.name.partition("_")
        assert getattr(zmq, f"PROTOCOL_ERROR_{family}_{name}") == code
