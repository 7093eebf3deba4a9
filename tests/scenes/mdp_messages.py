"""Messages of MDP that the product never makes in one call, and messages as a socket reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.zmtp.decoder import Decoder
from core.zmtp.frames import encode_message
from core.zmtp.scan import Batch
from mdp.wire.commands import (
    CLIENT_CANCEL_03,
    CLIENT_ERROR_03,
    CLIENT_PARTIAL_03,
    EMPTY,
    MDPC02,
    MDPW01,
    MDPW02,
    V02,
    V03,
    WORKER_REQUEST_03,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mdp.wire.commands import Dialect


def read(messages: Sequence[Sequence[bytes]]) -> Batch:
    """Return messages as they come from a socket in one read."""
    return Decoder(on_command=lambda _: None).feed(b"".join(map(encode_message, messages)))


def made(batch: Batch) -> Batch:
    """Return the same messages as frames only, as large ones come."""
    return Batch.of([], batch.messages())


def client_cancel(id: bytes) -> list[bytes]:
    """Return the frame of a client's CANCEL (MDP/0.3)."""
    return [CLIENT_CANCEL_03 + id]


def client_partial(dialect: Dialect, service: bytes, id: bytes, body: Sequence[bytes]) -> list[bytes]:
    """Return the frames of a PARTIAL to a client (MDP/0.2 uses the service name, MDP/0.3 the id)."""
    if dialect == V03:
        return [CLIENT_PARTIAL_03 + id, *body]
    return [MDPC02, b"\x02", service, *body]


def client_error(id: bytes, code: str, text: str) -> list[bytes]:
    """Return the frames of an ERROR to a client (MDP/0.3)."""
    return [CLIENT_ERROR_03 + id, code.encode("ascii"), text.encode()]


def worker_request(dialect: Dialect, address: bytes, body: Sequence[bytes], *, options: bytes = b"") -> list[bytes]:
    """Return the frames of a REQUEST to a worker; `address` is the client's, in MDP/0.3 the 8-byte token."""
    if dialect == V03:
        return [WORKER_REQUEST_03 + address, options, *body]
    if dialect == V02:
        return [MDPW02, b"\x02", address, EMPTY, *body]
    return [EMPTY, MDPW01, b"\x02", address, EMPTY, *body]
