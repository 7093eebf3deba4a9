"""A client's machine and what it sends, with its messages handed over decoded or as the octets that came."""

from __future__ import annotations

from typing import Any

from core.zmtp.decoder import Decoder
from core.zmtp.frames import Encoded, encode_message
from mdp.client.calls import Call, PendingRequest
from mdp.client.pending import RequesterLimits
from mdp.client.requester import Requester, numbers_from
from mdp.wire.commands import CLIENT_ERROR_03, CLIENT_FINAL_03, CLIENT_PARTIAL_03

__all__ = ["ECHO", "as_octets", "connected", "error", "final", "partial", "requester", "sent", "submit"]

ECHO = Call("echo", timeout_s=1.0, attempts=3)


def requester(**limits: Any) -> Requester[PendingRequest]:
    made: Requester[PendingRequest] = Requester(numbers_from(0x2BCD1234), RequesterLimits(**limits))
    made.destination = "tcp://broker"
    return made


def connected(**limits: Any) -> Requester[PendingRequest]:
    made = requester(**limits)
    made.joined(0.0)
    return made


decoded = Requester.receive


def as_octets(machine: Requester[PendingRequest], batch: list[list[bytes]], now: float) -> list[PendingRequest]:
    """Hand a batch over as a socket does, from the bytes of a read."""
    return decoded(machine, Decoder(on_command=lambda _: None).feed(b"".join(map(encode_message, batch))).messages(), now)


def sent(machine: Requester[PendingRequest]) -> list[list[bytes]]:
    """Frames of what the machine wants sent."""
    messages = []
    for message in machine.take_outgoing():
        frames: list[bytes] = []
        for item in [Encoded(message)] if isinstance(message, bytes) else message:
            frames += item.frames() if isinstance(item, Encoded) else [item]
        messages.append(frames)
    return messages


def submit(machine: Requester[PendingRequest], *body: bytes, call: Call = ECHO, now: float = 0.0) -> PendingRequest:
    pending = PendingRequest(call, body or (b"x",))
    machine.submit(pending, now)
    return pending


def final(pending: PendingRequest, *body: bytes) -> list[bytes]:
    return [CLIENT_FINAL_03 + pending.id, *(body or (b"reply",))]


def partial(pending: PendingRequest, *body: bytes) -> list[bytes]:
    return [CLIENT_PARTIAL_03 + pending.id, *body]


def error(pending: PendingRequest, code: bytes, text: bytes = b"") -> list[bytes]:
    return [CLIENT_ERROR_03 + pending.id, code, text]
