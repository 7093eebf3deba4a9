"""A broker that does what the test says: frames in, frames out, over real connections."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self

import core
from core.zmtp.frames import encode_message
from mdp.wire.channels import ANNOUNCED
from mdp.wire.commands import CLIENT_REQUEST_03, HEAD_BYTES, MDPC01
from tests.scenes.mdp_messages import worker_request
from tests.scenes.waiting import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    import pytest

    from mdp.wire.commands import Dialect

__all__ = ["PROBE", "StandIn", "give", "number", "sent_together", "token"]

PROBE = [b"", MDPC01, b"mmi.protocol", b"0.3"]


def number(frames: list[bytes]) -> bytes:
    """Return the id of a request of MDP/0.3, as a client sent it."""
    assert frames[0][:HEAD_BYTES] == CLIENT_REQUEST_03
    return frames[0][HEAD_BYTES:]


def token(value: int) -> bytes:
    """Return the token of a request of MDP/0.3, as a worker gets it."""
    return value.to_bytes(8, "big")


def give(broker: StandIn, peer: bytes, number: int, *body: bytes, dialect: Dialect = "0.3", options: bytes = b"") -> None:
    """Have a worker given a request."""
    broker.send(peer, *worker_request(dialect, token(number), body or (b"x",), options=options))


def sent_together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets, from now on, how many messages each send of a client or worker has."""
    sizes: list[int] = []
    send = core.Socket.send_octets

    def note(self: core.Socket, peer: bytes, messages: Sequence[bytes]) -> None:
        if self.type_name == b"DEALER":
            sizes.append(len(messages))
        send(self, peer, messages)

    monkeypatch.setattr(core.Socket, "send_octets", note)
    return sizes


class StandIn:
    """A ROUTER with a script.

    Args:
        endpoint: where to listen.
        protocol: answer to the question for the dialect, None for silence; the question is not shown to the test.
        tells: whether it tells its limits at the hello, as brokers of ours do.
        channels: whether it takes several workers on one connection, and says so there.
        largest: bytes of the largest message that it takes, -1 for the usual limit.

    Attributes:
        inbox: messages `(peer, [frame, …])`.
        left: peers whose connection ended.
        probes: how often the dialect was asked for.
        asked: peers that did so, while `protocol` is None.
    """

    def __init__(
        self,
        endpoint: str = "tcp://127.0.0.1:*",
        *,
        protocol: bytes | None = b"200",
        tells: bool = False,
        channels: bool = False,
        largest: int = -1,
    ) -> None:
        self.inbox: asyncio.Queue[tuple[bytes, list[bytes]]] = asyncio.Queue()
        self.left: asyncio.Queue[bytes] = asyncio.Queue()
        self.protocol = protocol
        self.probes = 0
        self.asked: asyncio.Queue[bytes] = asyncio.Queue()
        self._context = core.Context()
        self._socket = self._context.socket(
            core.ROUTER, linger=0, tell_limits=int(tells), metadata=ANNOUNCED if channels else b"", maxmsgsize=largest
        )
        self._asked: set[bytes] = set()
        self._bind = endpoint

    async def __aenter__(self) -> Self:
        self._socket.bind(self._bind)
        self._socket.set_receiver(self._take, on_peer=self._note_peer)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.close()

    async def close(self) -> None:
        """Vanish without a word."""
        await self._context.aclose(0)

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return self._socket.last_endpoint

    async def next(self) -> tuple[bytes, list[bytes]]:
        """Return the next message and who sent it."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.inbox.get()

    async def gone(self) -> bytes:
        """Return the next peer whose connection ends; those that only asked for the dialect do not count."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.left.get()

    def send(self, peer: bytes, *frames: bytes) -> None:
        """Send a message to a peer."""
        self._socket.send_multipart([peer, *frames])

    def send_together(self, peer: bytes, *messages: list[bytes]) -> None:
        """Send messages to a peer that come in one read."""
        self._socket.send_octets(peer, [encode_message(message) for message in messages])

    def cut(self, peer: bytes) -> None:
        """End the connection of a peer without a word."""
        assert self._socket.cut(peer)

    def _take(self, batch: list[list[bytes]]) -> None:
        for peer, *frames in batch:
            if frames == PROBE:
                self.probes += 1
                self._asked.add(peer)
                if self.protocol is not None:
                    self.send(peer, *PROBE[:3], self.protocol)
                else:
                    self.asked.put_nowait(peer)
            else:
                self.inbox.put_nowait((peer, frames))

    def _note_peer(self, peer: bytes, joined: bool) -> None:
        if not joined and peer not in self._asked:
            self.left.put_nowait(peer)
