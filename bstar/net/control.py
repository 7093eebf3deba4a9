"""Control socket of a server: STATUS and SWITCHOVER.

Every client that reaches it may order a switchover, so bind it where only operators have access: ipc, loopback, or with CURVE.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from bstar.errors import MalformedMessage, NotActive
from bstar.machine.wire import ReplyHeader, ReplyKind, RequestKind, decode_request_header, encode_reply_header
from core.rpc.control_socket import ControlSocket
from core.runtime import supervision
from core.runtime.supervision import ONCE

if TYPE_CHECKING:
    import asyncio
    from collections import Counter

    import core
    from bstar.machine.ballot import Ballot
    from bstar.machine.wire import RequestHeader


class Controlled(Protocol):
    """The server a control socket belongs to."""

    @property
    def counters(self) -> Counter[str]: ...  # `control_malformed` is counted here

    def known(self) -> Ballot: ...  # highest ballot

    def status(self) -> dict[str, Any]: ...  # the answer to STATUS

    async def switchover(self) -> None: ...  # hands the active role to the peer; raises NotActive


class Control(ControlSocket):
    """ROUTER that answers `["", header]` with `["", header, JSON]`."""

    def __init__(self, context: core.Context, endpoint: str, server: Controlled, options: dict[str, Any]) -> None:
        self._server = server
        self._orders: set[asyncio.Task[None]] = set()
        super().__init__(context, endpoint, **options)

    async def close(self) -> None:
        try:
            await supervision.cancel_all(self._orders)
        finally:
            await super().close()

    def _receive(self, batch: list[list[bytes]]) -> None:
        for frames in batch:
            try:
                if len(frames) != 3 or frames[1]:
                    raise MalformedMessage(f"order of {len(frames)} frames")
                header = decode_request_header(frames[2])
            except MalformedMessage:
                self._server.counters["control_malformed"] += 1
                continue
            if header.kind is RequestKind.STATUS:
                self._answer(frames[:2], header, ReplyKind.REPLY, self._server.status())
            elif header.kind is RequestKind.SWITCHOVER:
                switch = partial(self._switchover, frames[:2], header)
                failed = partial(self._report_fault, frames[:2], header)
                supervision.current().task("bstar switchover", switch, restart=ONCE, failed=failed, among=self._orders)
            else:
                self._server.counters["control_malformed"] += 1

    async def _switchover(self, envelope: list[bytes], header: RequestHeader) -> None:
        try:
            await self._server.switchover()
        except NotActive as error:
            self._answer(envelope, header, ReplyKind.NOT_ACTIVE, {"reason": error.reason, "active": error.active, **self._server.status()})
        else:
            self._answer(envelope, header, ReplyKind.REPLY, self._server.status())

    def _report_fault(self, envelope: list[bytes], header: RequestHeader, error: Exception) -> None:
        content = {**self._server.status(), "reason": f"a fault of this server: {type(error).__name__}"}
        self._answer(envelope, header, ReplyKind.NOT_ACTIVE, content)

    def _answer(self, envelope: list[bytes], header: RequestHeader, kind: ReplyKind, content: dict[str, Any]) -> None:
        reply = encode_reply_header(ReplyHeader(kind, header.sequence, self._server.known()))
        self._socket.send_multipart([*envelope, reply, json.dumps(content).encode()])
