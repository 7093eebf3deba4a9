"""A pipe sends the same bytes in the same order however messages are written (SOCK-02 to SOCK-06)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from core.frame import Frame
from core.options import Options
from core.pattern.base import Counters
from core.pattern.pipe import DETACHED, UNLIMITED, ConflatingPipe, Pipe
from core.pattern.reqrep import Router
from core.zmtp.frames import Encoded
from core.zmtp.limits import PeerLimits
from tests.scenes.patterns import Line, messages_of
from tests.scenes.raw_octets import message as on_the_wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.zmtp.frames import Message

HEAVY = 256 * 1024
# Where a form of encoding, or a way through the pipe, ends and the next one begins.
SIZES = (0, 1, 2, 250, 252, 253, 254, 255, 256, 257, 2047, 2048, 2049, 9000)
KINDS: tuple[Callable[[bytes], Any], ...] = (bytes, bytes, bytes, bytearray, memoryview, Frame)


def some_message(rng: random.Random, number: int) -> tuple[Message, list[bytes]]:
    """Return a message as an application gives it, and its frames."""
    frames = [b"%d" % number + bytes(rng.choice(SIZES)) for _ in range(rng.choice((1, 1, 2, 2, 3, 5)))]
    frames[-1] = frames[-1][: rng.choice(SIZES)]
    given: Message = [rng.choice(KINDS)(frame) for frame in frames]
    if rng.random() < 0.3:
        kept = rng.randrange(len(frames))
        given = [*given[:kept], Encoded(on_the_wire(*frames[kept:]))]
    return given, frames


def write(pipe: Pipe, rng: random.Random, batch: list[tuple[Message, list[bytes]]]) -> None:
    """Write messages in some way."""
    way = rng.choice(("one", "routed", "many", "octets", "pieces"))
    given = [message for message, _ in batch]
    encoded = [on_the_wire(*frames) for _, frames in batch]
    if way == "many":
        pipe.write_many(given)
    elif way == "pieces":
        assert pipe.write_pieces(encoded)
    for message, piece in zip(given, encoded, strict=True):
        if way == "one":
            pipe.write(message)
        elif way == "routed":
            pipe.write([b"id", *message], 1)
        elif way == "octets":
            pipe.write_octets(piece)


@pytest.mark.parametrize("seed", range(40))
def test_every_way_to_write_gives_the_same_octets_in_order(seed: int) -> None:
    rng = random.Random(seed)
    pipe = Pipe()
    line = Line(None, pipe)
    expected: list[list[bytes]] = []
    number = 0
    for _ in range(60):
        line.takes, line.holds = rng.random() < 0.6, rng.random() < 0.5
        batch = [some_message(rng, number := number + 1) for _ in range(rng.choice((1, 1, 2, 4)))]
        write(pipe, rng, batch)
        expected += [frames for _, frames in batch]
        waiting = [item if isinstance(item, bytes) else b"".join(item) for item in pipe.outbox]
        line.left = rng.randrange(5)
        assert pipe.waiting_bytes() == sum(map(len, waiting)) + line.left
        assert pipe.in_parts == any(isinstance(item, list) for item in pipe.outbox)
        if rng.random() < 0.3:
            line.flush()
        if rng.random() < 0.2:
            line.writes.append(b"".join(pipe.take_parts()))
            assert not pipe.in_parts
    line.takes = True
    line.flush()
    assert line.came() == expected
    assert (pipe.outbox, pipe.waiting_bytes()) == ([], line.left)


@pytest.mark.parametrize("size", [2046, 2047, 2048, 2049])
@pytest.mark.parametrize("way", ["write", "write_many"])
def test_the_body_of_a_large_message_is_not_copied(size: int, way: str) -> None:
    body = bytes(size)
    pipe = Pipe()
    Line(None, pipe, takes=False)
    pipe.write([b"a", body]) if way == "write" else pipe.write_many([[b"a", body]])
    assert any(part is body for part in pipe.take_parts()) is (size >= 2048)


def test_a_large_message_leaves_at_once_and_counts_for_nothing() -> None:
    pipe = Pipe()
    line = Line(None, pipe)
    pipe.set_marks(1, 1, 3000, 1)
    for _ in range(3):
        pipe.write([bytes(3000)])
    assert ([len(frames[0]) for frames in line.came()], pipe.outbox, pipe.in_parts, pipe.limit) == ([3000] * 3, [], False, 1)


# -- marks


def routed(pipe: Pipe) -> Router:
    """Return a ROUTER that knows a peer by this pipe."""
    router = Router(Options(), Counters(), 1)
    pipe.identity = b"id"
    assert router.ready(pipe)
    return router


WAYS: dict[str, Callable[[Pipe, list[bytes]], object]] = {
    "write": lambda pipe, frames: pipe.write(frames),
    "routed": lambda pipe, frames: pipe.write([b"id", *frames], 1),
    "write_many": lambda pipe, frames: pipe.write_many([frames]),
    "router": lambda pipe, frames: routed(pipe).send([b"id", *frames]),
    "router, many": lambda pipe, frames: routed(pipe).send_many([[b"id", *frames]]),
    "write_octets": lambda pipe, frames: pipe.write_octets(on_the_wire(*frames)),
    "encoded": lambda pipe, frames: pipe.write([Encoded(on_the_wire(*frames))]),
    "encoded, many": lambda pipe, frames: pipe.write_many([[Encoded(on_the_wire(*frames))]]),
    "write_pieces": lambda pipe, frames: pipe.write_pieces([on_the_wire(*frames)]),
    "write_pieces, two": lambda pipe, frames: pipe.write_pieces([on_the_wire(*frames)] * 2),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("behind", [False, True], ids=["first", "behind another"])
@pytest.mark.parametrize(("size", "counts"), [(253, False), (254, True), (255, True), (256, True), (2048, True)])
def test_octets_of_messages_beyond_255_octets_count_for_the_mark_of_octets(way: str, behind: bool, size: int, counts: bool) -> None:
    pipe = Pipe()
    line = Line(None, pipe, takes=False)
    pipe.set_marks(7, 7, 1, 1)
    if behind:
        pipe.write([b"before"])
    WAYS[way](pipe, [bytes(size)])
    assert pipe.limit == (0 if counts or "pieces" in way else 7)
    line.takes = True
    line.flush()
    assert (pipe.limit, pipe.outbox) == (7, [])
    pipe.set_marks(8, 7, 1, 1)
    assert pipe.limit == 8


@pytest.mark.parametrize("size", [500, 3000])
@pytest.mark.parametrize("way", WAYS)
def test_the_outbox_is_full_from_as_many_octets_on_as_the_mark_says(size: int, way: str) -> None:
    octets = len(on_the_wire(bytes(size))) * (2 if "two" in way else 1)
    for mark, limits in ((3 * octets + 1, [9, 9, 9, 0]), (3 * octets, [9, 9, 0]), (0, [9, 9, 9, 9])):
        pipe = Pipe()
        line = Line(None, pipe, takes=False)
        pipe.set_marks(9, 9, mark, 0)
        for taken in ("outbox", "parts", "outbox"):
            for limit in limits:
                WAYS[way](pipe, [bytes(size)])
                assert (pipe.limit, pipe.outbox != []) == (limit, True)
            line.takes = True
            line.flush() if taken == "outbox" else pipe.take_parts()
            line.takes = False


def test_marks_of_zero_are_none_and_new_ones_act_at_once() -> None:
    pipe = Pipe()
    Line(None, pipe, takes=False)
    assert (pipe.limit, pipe.rcvhwm, pipe.rcvhwm_bytes) == (UNLIMITED,) * 3
    pipe.set_marks(1, 2, 1000, 4)
    assert (pipe.limit, pipe.rcvhwm, pipe.rcvhwm_bytes) == (1, 2, 4)
    pipe.write([bytes(989)])  # 998 octets with the header
    assert pipe.limit == 1
    for mark, limit in ((999, 5), (998, 0), (997, 0), (0, 5)):
        pipe.set_marks(5, 0, mark, 0)
        assert pipe.limit == limit
    assert (pipe.rcvhwm, pipe.rcvhwm_bytes) == (UNLIMITED,) * 2
    pipe.set_marks(0, 0, 0, 0)
    assert pipe.limit == UNLIMITED


@pytest.mark.parametrize("way", ["take_parts", "take_outbox", "discard_outbox"])
@pytest.mark.parametrize("size", [1000, 3000])
def test_an_outbox_that_was_emptied_weighs_nothing(way: str, size: int) -> None:
    pipe = Pipe()
    Line(None, pipe, takes=False)
    pipe.set_marks(9, 9, 1500, 9)
    for _ in range(2):
        pipe.write([bytes(size)])
        pipe.write([b"small"])
        getattr(pipe, way)()
        assert (pipe.outbox, pipe.in_parts, pipe.limit) == ([], False, 9)
    pipe.write([bytes(1000)])
    assert pipe.limit == 9


@pytest.mark.parametrize("size", [1000, 5000, HEAVY // 4 - 9])
def test_octets_leave_before_the_end_of_the_turn_once_they_are_many(size: int) -> None:
    pipe = Pipe()
    line = Line(None, pipe, holds=True)
    octets = 9 + size
    for _ in range(2):  # from the beginning again after they have left
        for held in range(octets, HEAVY, octets):
            pipe.write([bytes(size)])
            assert (pipe.waiting_bytes(), line.came()) == (held, [])
        pipe.write([bytes(size)])
        assert pipe.waiting_bytes() == 0
        assert len(line.came()) == -(-HEAVY // octets)


# -- encoded messages, all or none


@pytest.mark.parametrize(
    ("held", "given", "taken"), [(0, 3, True), (1, 2, True), (1, 3, False), (3, 1, False), (2, 1, True), (0, 4, False)]
)
def test_encoded_messages_find_room_together_or_none_does(held: int, given: int, taken: bool) -> None:
    pipe = Pipe()
    line = Line(None, pipe, takes=False)
    pipe.set_marks(3, 3, 0, 0)
    for number in range(held):
        pipe.write([b"held %d" % number])
    pieces = [on_the_wire(b"new %d" % number) for number in range(given)]
    assert pipe.write_pieces(pieces) is taken
    line.takes = True
    line.flush()
    assert line.came() == [[b"held %d" % n] for n in range(held)] + [[b"new %d" % n] for n in range(given)] * taken


def test_encoded_messages_leave_in_one_write() -> None:
    pipe = Pipe()
    line = Line(None, pipe)
    assert pipe.write_pieces([on_the_wire(b"alone")])
    assert pipe.write_pieces([on_the_wire(b"a"), on_the_wire(b"b")])
    assert (list(map(messages_of, line.writes)), pipe.outbox) == ([[[b"alone"]], [[b"a"], [b"b"]]], [])
    pipe.set_marks(9, 9, 10, 9)
    assert pipe.write_pieces([on_the_wire(bytes(10))] * 2)
    assert pipe.limit == 9  # what has left does not count


def test_inproc_takes_no_octets() -> None:
    pipe = Pipe()
    line = Line(None, pipe)
    pipe.takes_octets = False
    assert not pipe.write_pieces([on_the_wire(b"x")])
    pipe.outbox.append([b"not octets"])
    line.left = 5
    assert (line.writes, pipe.waiting_bytes()) == ([], 0)
    pipe.limits = PeerLimits(parts=0)
    assert pipe.judge_outbox() == []


# -- what is taken back


@pytest.mark.parametrize("large", [False, True])
def test_what_the_peer_does_not_take_is_dropped_and_the_rest_kept_in_order(large: bool) -> None:
    pipe = Pipe()
    line = Line(None, pipe, takes=False)
    bodies = [b"a", bytes(100), bytes(101), b"b" * (99 if not large else 90), bytes(5000 if large else 200), b"c"]
    for body in bodies:
        pipe.write([body])
    pipe.write([b"", b"", b""])
    assert pipe.judge_outbox() == []
    pipe.limits = PeerLimits(parts=2, message_bytes=100)
    errors = pipe.judge_outbox()
    assert [(error.size, error.limit) for error in errors] == [(101, 100), (5000 if large else 200, 100), (3, 2)]
    assert pipe.judge_outbox() == []
    line.takes = True
    line.flush()
    assert line.came() == [[body] for body in bodies if len(body) <= 100]
    assert pipe.judge_outbox() == []


def test_what_was_not_handed_over_is_dropped_and_counted() -> None:
    pipe = Pipe()
    assert pipe.discard_outbox() == 0
    for _ in range(3):
        pipe.write([b"x"])
    pipe.write([bytes(5000)])
    assert [pipe.discard_outbox(), pipe.discard_outbox()] == [4, 0]
    assert (pipe.outbox, pipe.waiting_bytes()) == ([], 0)


def test_without_a_connection_everything_waits_and_nothing_is_on_its_way() -> None:
    pipe = Pipe(connecting=True, endpoint="tcp://a:1")
    assert (pipe.connecting, pipe.connected, pipe.endpoint, pipe.engine) == (True, False, "tcp://a:1", DETACHED)
    pipe.write([b"small"])
    pipe.write([bytes(5000)])
    assert pipe.write_pieces([on_the_wire(b"x"), on_the_wire(b"y")])
    pipe.engine.write_out()
    pipe.engine.throttle()
    pipe.engine.resume()
    pipe.engine.subscribe(b"t", True)
    pipe.engine.abort_with("why")
    pipe.engine.mute(lambda _: None)
    assert pipe.engine.flush() is False
    assert pipe.engine.unwritten() == 0
    assert messages_of(b"".join(pipe.take_parts())) == [[b"small"], [bytes(5000)], [b"x"], [b"y"]]


@pytest.mark.parametrize("way", ["write", "routed", "write_many", "write_octets", "write_pieces", "encoded"])
@pytest.mark.parametrize("size", [1, 300, 5000])
def test_opt_02_a_conflating_pipe_holds_the_newest_whatever_the_marks(way: str, size: int) -> None:
    pipe = ConflatingPipe()
    line = Line(None, pipe, takes=False)
    pipe.set_marks(1, 1, 1, 1)
    for number in range(5):
        WAYS[way](pipe, [b"%d" % number + bytes(size)])
        assert (len(pipe.outbox), pipe.limit) == (1, UNLIMITED)
    line.takes = True
    line.flush()
    assert line.came() == [[b"4" + bytes(size)]]
    pipe.write([b"at once"])
    assert (line.came(), pipe.outbox) == ([[b"at once"]], [])
    assert pipe.write_pieces([on_the_wire(b"older"), on_the_wire(b"newer")])
    assert line.came() == [[b"newer"]]
    pipe.write_many([[b"1"], [b"2"]])
    assert line.came() == [[b"1"], [b"2"]]


def test_opt_02_what_was_replaced_does_not_count_for_the_turn_either() -> None:
    pipe = ConflatingPipe()
    line = Line(None, pipe, holds=True)
    for number in range(2 * HEAVY // 1000):
        pipe.write([b"%d" % number + bytes(1000)])
    assert line.came() == []
    line.flush()
    assert line.came() == [[b"%d" % number + bytes(1000)]]
    for size, leaves in ((HEAVY - 10, 0), (HEAVY - 9, 1)):
        pipe.write([bytes(size)])
        assert len(line.came()) == leaves
