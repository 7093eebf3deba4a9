"""Arbitrary messages to a mirror are refused; the mirror survives and then follows a real store (fault X2)."""

from __future__ import annotations

import struct
from itertools import count
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

import core
import titanic
from titanic.mirror.replica_server import Mirror
from titanic.wire.mirror_frames import SIZE_MAX, BadCall, Hello, Swap, check_name, pack_pair, unpack_pair

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STORE = b"s" * 16
SEGMENT = "00000000000000000001.seg"


def packed(*values: Any) -> bytes:
    return bytes(msgpack.packb(list(values)))


BAD_SWAPS = {
    "a file that is a list": packed({}, [[]], 0, STORE),
    "a file that is a map": packed({SEGMENT: 1}, [{}], 0, STORE),
    "a file that is a number": packed({SEGMENT: 1}, [1], 0, STORE),
    "a file nobody has sent a size of": packed({}, [SEGMENT], 0, STORE),
    "sizes that are a list": packed([], [], 0, STORE),
    "a size that is a text": packed({SEGMENT: "1"}, [], 0, STORE),
    "a size below nothing": packed({SEGMENT: -1}, [], 0, STORE),
    "a size that is true": packed({SEGMENT: True}, [], 0, STORE),
    "a size no file has": packed({SEGMENT: 2**63}, [], 0, STORE),
    "the largest size there is": packed({SEGMENT: 2**64 - 1}, [], 0, STORE),
    "a size of 19 digits": packed({SEGMENT: 10**18}, [], 0, STORE),
    "a file twice": packed({SEGMENT: 1}, [SEGMENT, SEGMENT], 0, STORE),
    "many maps": packed({}, [{}] * 60_000, 0, STORE),
    "an epoch of 64 bits": packed({}, [], 2**64 - 1, STORE),
    "a name that is a path": packed({"../x": 1}, [], 0, STORE),
    "a name that is octets": packed({b"x": 1}, [], 0, STORE),
    "a store that is short": packed({}, [], 0, b"s"),
    "a store that is a list": packed({}, [], 0, []),
    "an epoch below nothing": packed({}, [], -1, STORE),
    "an epoch that is a text": packed({}, [], "0", STORE),
    "one field too many": packed({}, [], 0, STORE, 1),
    "no list": bytes(msgpack.packb({})),
    "a claim of 4 billion files": b"\x94\xdf\xff\xff\xff\xff",
    "nested claims": b"\xdd\x00\x00\xff\xff" * 10_000,
    "no msgpack": b"\xc1",
    "nothing": b"",
}
BAD_CALLS = {
    "no call": [],
    "an unknown call": [b"dance"],
    "a call without arguments": [b"write"],
    "too many arguments": [b"sync", SEGMENT.encode(), b"1"],
    "an offset that is no number": [b"write", SEGMENT.encode(), b"x", b""],
    "an offset of 19 digits": [b"write", SEGMENT.encode(), b"9" * 19, b""],
    "digits that are not ASCII": [b"write", SEGMENT.encode(), "٣".encode(), b""],
    "a file that is not there": [b"sync", SEGMENT.encode()],
    "a path": [b"create", b"../x"],
    "a name with NUL": [b"create", b"x\0y"],
    "a name that is no ASCII": [b"create", b"\xff\xfe"],
    "a hello that is none": [b"hello", b"\xc1"],
    "an epoch of a hello that is a list": [b"hello", packed(STORE, [], False)],
}


class Peer:
    """A store's side of the conversation, in frames."""

    def __init__(self, socket: core.Socket) -> None:
        self._socket = socket
        self._session = 0
        self._numbers: Iterator[int] = count(1)

    async def send(self, *call: bytes) -> None:
        await self._socket.send_multipart([struct.pack(">Q", self._session), struct.pack(">Q", next(self._numbers)), *call])

    async def ask(self, *call: bytes) -> list[bytes]:
        await self.send(*call)
        return (await self._socket.recv_multipart())[2:]

    async def hello(self) -> None:
        self._session += 1
        assert (await self.ask(b"hello", packed(STORE, 0, False)))[0] == b"ok"


@pytest.mark.parametrize("swap", BAD_SWAPS.values(), ids=list(BAD_SWAPS))
async def test_a_swap_that_is_none_is_refused_and_the_mirror_lives(swap: bytes, tmp_path: Path) -> None:
    async with Mirror(titanic.RealDisk(tmp_path)) as mirror, core.Context() as context:
        socket = context.socket(core.DEALER)
        socket.connect(mirror.bind("tcp://127.0.0.1:*"))
        peer = Peer(socket)
        await peer.hello()
        assert (await peer.ask(b"swap", swap))[0] == b"no"
        await peer.hello()


@pytest.mark.parametrize("swap", BAD_SWAPS.values(), ids=list(BAD_SWAPS))
def test_a_swap_that_is_none_is_a_bad_call(swap: bytes) -> None:
    with pytest.raises(BadCall):
        Swap.decode(swap)


def test_a_swap_goes_there_and_back() -> None:
    for swap in (Swap({}, [], 0, STORE), Swap({SEGMENT: 0, "manifest": SIZE_MAX - 1}, [SEGMENT, "manifest"], 1 << 62, STORE)):
        assert Swap.decode(swap.encode()) == swap
    with pytest.raises(BadCall, match="not a swap"):
        Swap.decode(Swap({SEGMENT: 1}, ["manifest"], 0, STORE).encode())  # a copy of which nobody has said the size
    for sizes in ({SEGMENT: SIZE_MAX}, {"lock": 1}):
        with pytest.raises(BadCall):
            Swap.decode(Swap(sizes, [], 0, STORE).encode())


@pytest.mark.parametrize("hello", [(b"s" * 15, 0, False), (b"s" * 17, 0, False), ("s" * 16, 0, False), (STORE, 0, 1), (STORE, 0)])
def test_a_hello_that_is_none_is_a_bad_call(hello: tuple[object, ...]) -> None:
    with pytest.raises(BadCall, match="not a hello"):
        Hello.decode(packed(*hello))


def test_files_of_a_store_have_plain_names_that_are_not_local_ones() -> None:
    assert [check_name(name) for name in (SEGMENT, "x" * 100, "manifest")] == [SEGMENT, "x" * 100, "manifest"]
    for name in ("", "x" * 101, ".hidden", "../x", "a/b", "lock", "reserve", "x.copy.tmp", b"x", None):
        with pytest.raises(BadCall, match="not a file name"):
            check_name(name)


def test_a_message_is_a_session_a_number_and_a_call() -> None:
    frames = [*pack_pair(2**64 - 1, 258), b"ok"]
    assert frames[1] == bytes([0, 0, 0, 0, 0, 0, 1, 2])
    assert unpack_pair(frames) == (2**64 - 1, 258)
    for bad in (frames[:2], [], [b"1", *frames[1:]], [frames[0], b"1", b"ok"], [frames[0], bytes(9), b"ok"]):
        with pytest.raises(BadCall, match="a session, a number and a call"):
            unpack_pair(bad)


async def test_calls_that_are_none_are_refused_and_the_mirror_lives(tmp_path: Path) -> None:
    async with Mirror(titanic.RealDisk(tmp_path)) as mirror, core.Context() as context:
        socket = context.socket(core.DEALER)
        socket.connect(mirror.bind("tcp://127.0.0.1:*"))
        peer = Peer(socket)
        for what, call in BAD_CALLS.items():
            await peer.hello()
            assert (await peer.ask(*call))[0] == b"no", what
        await peer.hello()


@pytest.mark.parametrize("size", [10**18, 2**63, 2**64 - 1])
async def test_a_size_no_file_has_is_refused_though_the_file_is_there(size: int, tmp_path: Path) -> None:
    async with Mirror(titanic.RealDisk(tmp_path)) as mirror, core.Context() as context:
        socket = context.socket(core.DEALER)
        socket.connect(mirror.bind("tcp://127.0.0.1:*"))
        peer = Peer(socket)
        await peer.hello()
        assert (await peer.ask(b"copy", SEGMENT.encode(), b"0", b"x"))[0] == b"ok"
        answer = await peer.ask(b"swap", packed({SEGMENT: size}, [SEGMENT], 0, STORE))
        assert answer[:1] == [b"no"]
        assert b"not a swap" in answer[1]
        assert not mirror.replica.mark.doubt  # that was no fault of the disk
        await peer.hello()


def test_x2_a_hello_is_short_and_a_swap_copies_no_file_twice() -> None:
    store = bytes(16)
    assert Hello.decode(msgpack.packb([store, 1 << 62, True])) == Hello(store, 1 << 62, True)
    with pytest.raises(BadCall, match="a hello of"):
        Hello.decode(msgpack.packb([store, 1, True, *range(100)]))
    assert Swap.decode(msgpack.packb([{"1": 1, "2": 1}, ["1", "2"], 1, store])).copied == ["1", "2"]
    with pytest.raises(BadCall, match="not a swap"):
        Swap.decode(msgpack.packb([{"1": 1, "2": 1}, ["1", "1", "2"], 1, store]))
    sizes = {f"{number:04x}": 1 for number in range(4_681)}
    for files, refused in ((sizes, True), ({f"segment-{number:08}": 1 for number in range(4_000)}, False)):
        octets = msgpack.packb([files, [], 1, store])
        if refused:
            with pytest.raises(BadCall, match="not msgpack"):
                Swap.decode(octets)
        else:
            assert Swap.decode(octets).sizes == files
