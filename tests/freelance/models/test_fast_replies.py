"""freelance.models.fast_replies: reading bytes and reading frames give the same replies; unusual messages are left."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import freelance
from core.zmtp.decoder import Decoder, encode_command, encode_message
from freelance.models.agent import Agent, AgentLimits
from freelance.models.effects import Finished, GaveUp, Send
from freelance.models.fast_replies import FastReplies
from freelance.models.server_list import Health
from freelance.models.shotgun import Shotgun

if TYPE_CHECKING:
    from typing import Literal

    import core
    from freelance.models.effects import Effect

A, B = b"tcp://a:1", b"tcp://b:1"
LONGEST = 8192
ANY = "tcp://127.0.0.1:*"

Machine = Agent | Shotgun


def machine(model: int, *, join: bool = True) -> Machine:
    names = [A.decode(), B.decode()]
    made: Machine = Agent(names, AgentLimits()) if model == 3 else Shotgun(names, 3.0)
    for name in (A, B) if join else ():
        made.joined(name, 0.0)
    return made


@pytest.fixture(params=[2, 3])
def model(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


def reply(model: int, number: int, *body: bytes) -> bytes:
    return encode_message([*([b""] if model == 2 else []), b"%d" % number, *body])


def take(made: Machine, name: bytes, octets: bytes, now: float = 0.1, longest: int = LONGEST) -> tuple[int, list[tuple[int, list[bytes]]]]:
    finished: list[tuple[int, list[bytes]]] = []
    return made.take_fast_replies(name, octets, longest, now, finished), finished


def test_octets_of_a_request_are_those_of_its_frames(model: int) -> None:
    """FLP-08, FRL-03."""
    made, other = machine(model), machine(model)
    for body in (b"", b"x", b"y" * 255):
        posted = made.submit_fast((body,), 0)
        number, effects = other.submit([body], 0)
        assert posted is not None
        sends = [effect for effect in effects if isinstance(effect, Send)]
        assert posted == (number, tuple(send.name for send in sends), encode_message(sends[0].frames))
    assert len(made) == len(other) == 3
    assert made.counters == other.counters


def test_several_replies_in_one_read(model: int) -> None:
    made = machine(model)
    for body in (b"x", b"y", b"z"):
        made.submit_fast((body,), 0)
    octets = reply(model, 2, b"two") + reply(model, 1, b"one", b"", b"!") + reply(model, 3, b"three")
    assert take(made, A, octets) == (len(octets), [(2, [b"two"]), (1, [b"one", b"", b"!"]), (3, [b"three"])])
    assert (len(made), take(made, A, octets), made.counters["reply_unknown"]) == (0, (len(octets), []), 3)


def test_what_is_not_whole_or_uncommon_is_left(model: int) -> None:
    """FLP-09: a PONG is no reply."""
    made = machine(model)
    made.submit_fast((b"x",), 0)
    whole = reply(model, 1, b"a", b"b")
    for octets in (
        *(whole[:end] for end in range(len(whole))),
        encode_message([b"PONG"]),
        encode_message([b"1"]),
        encode_command(b"\4PING"),
        reply(model, 1, b"x" * 256),
        reply(model, 1, b"x" * 256, b"y"),
        whole[:-3] + encode_command(b"y"),
    ):
        assert take(made, A, octets) == (0, [])
    assert take(made, A, whole, longest=len(whole) - 1) == (0, [])
    assert take(made, A, whole + whole[:-1]) == (len(whole), [(1, [b"a", b"b"])])


def test_the_reply_of_a_server_that_was_not_asked_is_left_and_counted() -> None:
    """L1, FLP-13."""
    made = machine(3)
    made.submit_fast((b"x",), 0)
    for name in (B, b"who"):
        assert take(made, name, reply(3, 1, b"y")) == (0, [])
    assert made.receive(B, [b"1", b"y"], 0.1) == []
    assert made.counters["reply_unasked"] == 1
    assert take(made, A, reply(3, 1, b"z")) == (len(reply(3, 1, b"z")), [(1, [b"z"])])


def test_a_large_reply_is_taken_as_frames(model: int) -> None:
    made = machine(model)
    made.submit_fast((b"x",), 0)
    body = b"y" * 1000
    frames = [*([b""] if model == 2 else []), b"1", body]
    assert made.receive(A, frames, 0.1) == [Finished(1, [body])]
    assert len(made) == 0


def test_withdrawn(model: int) -> None:
    made = machine(model)
    made.submit_fast((b"x",), 0)
    made.withdraw(1)
    made.withdraw(1)
    assert (len(made), take(made, A, reply(model, 1, b"y"))[1]) == (0, [])


def test_without_a_server_there_is_no_fast_request(model: int) -> None:
    assert machine(model, join=False).submit_fast((b"x",), 0) is None


def test_time_takes_over_a_fast_request() -> None:
    """BEY-13, FLP-16: hedge, give-ups and end as for a request that was never fast."""
    done: list[list[tuple[float, Effect]]] = []
    for timeout_s in (None, 3.0):
        made = machine(3)
        made.submit([b"x"], 0, timeout_s)
        events: list[tuple[float, Effect]] = []
        while (at := made.deadline()) is not None and at <= 3.0:
            events += [(at, effect) for effect in made.tick(at)]
        done.append(events)
    assert done[0] == done[1]
    assert done[0][0] == (0.5, Send(B, [b"1", b"x"]))
    assert isinstance(done[0][-1][1], GaveUp)
    assert done[0][-1][0] == 3.0


def test_time_ends_a_request_of_model_2() -> None:
    """FRL-05."""
    made = machine(2)
    made.submit_fast((b"x",), 0.5)
    assert (made.deadline(), made.tick(3.4), made.tick(3.5)) == (3.5, [], [GaveUp(1, 2, 3.0)])


def test_a_lost_connection_takes_over_fast_requests() -> None:
    made = machine(3)
    made.submit_fast((b"x",), 0)
    made.submit_fast((b"y",), 0)
    assert made.lost(A, 0.1) == [Send(B, [b"1", b"x"]), Send(B, [b"2", b"y"])]
    assert take(made, B, reply(3, 1, b"x")) == (0, [])  # not among the fast requests any more
    assert made.receive(B, [b"1", b"x"], 0.2) == [Finished(1, [b"x"])]


def test_replies_of_a_removed_server_are_ignored(model: int) -> None:
    made = machine(model)
    made.submit_fast((b"x",), 0)
    made.remove(A, 0.1)
    assert take(made, A, reply(model, 1, b"x")) == (0, [])
    assert len(made) == 1


def test_a_server_that_joins_gets_what_is_open() -> None:
    """FRL-06."""
    made = machine(2, join=False)
    made.joined(A, 0)
    made.submit_fast((b"x",), 0)
    assert made.joined(B, 0.1) == [Send(B, [b"", b"1", b"x"])]
    assert made.receive(B, [b"", b"1", b"OK"], 0.2) == [Finished(1, [b"OK"])]


def test_fast_replies_put_off_ping_and_death() -> None:
    """FLP-06."""
    made = Agent([A.decode()], AgentLimits(health=Health(ping_s=2.0, dead_s=6.0)))
    made.joined(A, 0)
    for second in range(20):
        made.submit_fast((b"x",), second)
        assert take(made, A, reply(3, second + 1, b"y"), second + 0.1)[1]
        assert made.tick(second + 0.2) == []
    assert made.tick(21.0) == []
    assert made.tick(21.2) == [Send(A, [b"PING"])]
    assert made.servers.by_name[A].live
    while (at := made.deadline()) is not None and at < 25.0:
        made.tick(at)
    assert made.servers.by_name[A].live
    made.tick(25.1)
    assert (made.servers.by_name[A].live, made.counters["server_dead"]) == (False, 1)


def test_a_suspect_server_gets_no_fast_request() -> None:
    made = machine(3)
    assert isinstance(made, Agent)
    made.servers.failed(A, 0, 1.0)
    posted = made.submit_fast((b"x",), 1.1)
    assert posted is not None
    assert posted[1] == (B,)
    assert made.submit_fast((b"x",), 5.0) is None  # its pause is over: a trial
    made.lost(B, 5.0)
    assert made.submit_fast((b"x",), 5.0) is None


PLAIN = [encode_message(frames) for frames in ([b"PING"], [b"PING", b"x"], [b"", b"x"], [b"", b"1", b"x"], [b"1", b"x", b"y"])]
SMALL = st.binary(max_size=3)
PIECES = st.lists(
    st.one_of(
        st.lists(SMALL, min_size=1, max_size=4).map(encode_message),
        st.tuples(st.integers(0, 4), SMALL).map(lambda one: encode_message([b"%d" % one[0], one[1]])),
        st.tuples(st.integers(0, 4), SMALL).map(lambda one: encode_message([b"", b"%d" % one[0], one[1]])),
        SMALL,
    ),
    max_size=6,
)


@given(PIECES, st.sampled_from([2, 3]))
def test_octets_and_frames_end_the_same_requests(pieces: list[bytes], model: int) -> None:
    """For any bytes of a peer.

    No other error, and together with the decoder the same replies as from frames alone.
    """
    octets = b"".join(pieces)
    made, other = machine(model), machine(model)
    for one in (made, other):
        for _ in range(3):
            assert one.submit_fast((b"x",), 0) is not None

    def decoded(rest: bytes) -> list[list[bytes]]:
        decoder = Decoder(on_command=lambda _: None)
        return [*decoder.feed(rest)]

    taken, finished = take(made, A, octets)
    assert 0 <= taken <= len(octets)
    for frames in decoded(octets[taken:]):
        finished += [(effect.number, effect.body) for effect in made.receive(A, frames, 0.1) if isinstance(effect, Finished)]
    wanted: list[tuple[int, list[bytes]]] = []
    for frames in decoded(octets):
        wanted += [(effect.number, effect.body) for effect in other.receive(A, frames, 0.1) if isinstance(effect, Finished)]
    assert finished == wanted
    assert made.counters["reply_unknown"] == other.counters["reply_unknown"]


class Recorder:
    """Messages of a server, as bytes after the routing id."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send_octets(self, routing_id: bytes, pieces: list[bytes]) -> None:
        self.sent += pieces

    def send_multipart(self, frames: list[bytes]) -> None:
        self.sent.append(encode_message(frames, 1))

    def send_many(self, messages: list[list[bytes]]) -> None:
        for frames in messages:
            self.send_multipart(frames)


def served(octets: bytes, model: Literal[1, 2, 3], *, express: bool) -> tuple[list[bytes], dict[str, int]]:
    """Return a server's answers and counters."""
    server = freelance.Server("ipc://unbound", lambda body: body[::-1] if body != [b""] else None, model=model)
    recorder = Recorder()
    server._socket = cast("core.Socket", recorder)
    taken = server._answer_fast(b"c", octets, LONGEST) if express else 0
    assert 0 <= taken <= len(octets)
    decoder = Decoder(on_command=lambda _: None)
    decoder.head = [b"c"]
    receive = server._receive_pings_and_requests if model == 3 else server._receive_enveloped
    receive([*decoder.feed(octets[taken:])])
    return recorder.sent, dict(server.counters)


@given(PIECES | st.lists(st.sampled_from(PLAIN), max_size=6), st.sampled_from([1, 2, 3]))
def test_a_server_answers_octets_and_frames_alike(pieces: list[bytes], model: Literal[1, 2, 3]) -> None:
    """FLP-02, FLP-03, FRL-04: for any bytes of a client, the same answers and counts."""
    octets = b"".join(pieces)
    assert served(octets, model, express=True) == served(octets, model, express=False)


def test_fast_replies_keep_the_order_of_its_requests() -> None:
    fast = FastReplies([], 1.0, Counter())
    for at in (0.0, 0.5, 1.0):
        fast.add([b"x"], (A,), at)
    assert (fast.deadline(), [request.number for request in fast.overdue(1.5)]) == (1.0, [1, 2])
    assert (len(fast), [request.number for request in fast.take_all()], fast.deadline()) == (1, [3], None)


@pytest.mark.parametrize("answer", [b"x", [b"x"], [b"a", b"b" * 300], b"y" * 300, [], bytearray(b"z")])
async def test_the_server_answers_octets_as_it_answers_frames(answer: object, model: Literal[2, 3]) -> None:
    """FLP-03, FLP-05: short and long requests get the same answers."""
    async with (
        freelance.Server(ANY, lambda body: answer, model=model) as server,
        freelance.Client([server.endpoint], model=model) as client,
    ):
        assert await client.request(b"short") == await client.request(b"long" * 100)
        assert server.counters["answered"] == 2


@pytest.mark.parametrize("answer", [1, ["text"], [1]])
async def test_an_answer_that_cannot_be_sent_is_the_handlers_failure(answer: object, model: Literal[2, 3]) -> None:
    async with freelance.Server(ANY, lambda body: answer if body != [b"fine"] else b"fine", model=model) as server:
        async with freelance.Client([server.endpoint], model=model, timeout=0.2) as client:
            for body in (b"short", b"long" * 100):
                with pytest.raises(freelance.NoServer):
                    await client.request(body)
        assert server.counters["handler_failed"] >= 2
        async with freelance.Client([server.endpoint], model=model, timeout=100) as client:
            assert await client.request(b"fine") == [b"fine"]


async def test_a_handler_that_is_sometimes_asynchronous(model: Literal[2, 3]) -> None:
    async def later() -> bytes:
        return b"later"

    async with freelance.Server(ANY, lambda body: later() if body == [b"wait"] else b"now", model=model) as server:
        async with freelance.Client([server.endpoint], model=model) as client:
            assert [await client.request(body) for body in (b"wait", b"go", b"wait")] == [[b"later"], [b"now"], [b"later"]]
