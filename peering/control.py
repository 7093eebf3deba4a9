"""Control socket of a broker, which reports its status, and the operator's side of it.

request   [""]["STATUS"]        reply   [""]["200"][JSON]   or   [""]["400"]
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import core
from core.machine.peer_text import json_or_none
from core.rpc.control_socket import ControlSocket, asking
from peering.errors import MalformedMessage

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.security.credentials import Secured

STATUS: Final = b"STATUS"
_OK: Final = b"200"
_MALFORMED: Final = b"400"


class Control(ControlSocket):
    """ROUTER that answers STATUS."""

    def __init__(self, context: core.Context, endpoint: str, status: Callable[[], dict[str, Any]]) -> None:
        self._status = status
        super().__init__(context, endpoint)

    def _receive(self, batch: list[list[bytes]]) -> None:
        for frames in batch:
            if frames[1:] == [b"", STATUS]:
                self._socket.send_multipart([*frames[:2], _OK, json.dumps(self._status()).encode()])
            else:
                self._socket.send_multipart([*frames[:1], b"", _MALFORMED])


async def ask(endpoint: str, timeout_s: float, security: Secured | None = None) -> dict[str, Any]:
    """Return the status of a broker; raises NoAnswer, or MalformedMessage if no broker of this kind listens there."""
    async with asking(core.REQ, endpoint, timeout_s, security) as socket:
        await socket.send(STATUS)
        reply = await socket.recv_multipart()
    status = json_or_none(reply[1]) if len(reply) == 2 and reply[0] == _OK else None
    if not isinstance(status, dict):
        raise MalformedMessage("the answer is not from a broker of this kind")
    return status
