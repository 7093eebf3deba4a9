"""freelance.server: requests read as bytes and as frames get the same answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import freelance
from core.zmtp.decoder import Decoder
from core.zmtp.frames import encode_message

if TYPE_CHECKING:
    from typing import Literal

    import core

ANY = "tcp://127.0.0.1:*"


@pytest.fixture(params=[2, 3])
def model(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


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


def served(reads: list[bytes], model: Literal[1, 2, 3]) -> tuple[list[bytes], dict[str, int]]:
    """Return a server's answers and counters."""
    server = freelance.Server("ipc://unbound", lambda body: body[::-1] if body != [b""] else None, model=model)
    recorder = Recorder()
    server._socket = cast("core.Socket", recorder)
    decoder = Decoder(on_command=lambda _: None)
    decoder.head = [b"c"]
    receive = server._receive_pings_and_requests if model == 3 else server._receive_enveloped
    for octets in reads:
        receive([*decoder.feed(octets)])
        if decoder.failure is not None:
            break
    return recorder.sent, dict(server.counters)


@given(PIECES | st.lists(st.sampled_from(PLAIN), max_size=6), st.sampled_from([1, 2, 3]), st.integers(1, 40))
def test_a_server_answers_alike_in_whatever_reads_requests_come(pieces: list[bytes], model: Literal[1, 2, 3], size: int) -> None:
    """FLP-02, FLP-03, FRL-04: for any bytes of a client, the same answers and counts."""
    octets = b"".join(pieces)
    assert served([octets], model) == served([octets[at : at + size] for at in range(0, len(octets), size)], model)


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
