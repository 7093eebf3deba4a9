"""Queries of operators: state channel and control socket of a server, state of the witness."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import core
from bstar.errors import MalformedMessage, NotActive
from bstar.machine import wire
from core.machine.peer_text import json_or_none
from core.rpc.control_socket import NoAnswer, asking
from core.runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from bstar.machine.wire import StateMessage
    from core.security.credentials import Secured


async def look(peer: str, timeout_s: float, security: Secured | None = None) -> StateMessage:
    """Return the next state message of a server, stock members included; raises NoAnswer."""
    async with asking(core.SUB, peer, timeout_s, security) as socket:
        for topic in (wire.STATE_TOPIC, *wire.DIGITS):
            socket.setsockopt(core.SUBSCRIBE, topic)
        while True:
            try:
                return wire.decode_state(await socket.recv_multipart())
            except MalformedMessage:
                continue


async def look_in_words(peer: str, timeout_s: float, security: Secured | None = None) -> dict[str, Any]:
    return words(await look(peer, timeout_s, security))


async def ask_all(asked: dict[str, Coroutine[Any, Any, dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Run several queries at once; a malformed or missing answer is returned as `error`."""
    answers = await asyncio.gather(*asked.values(), return_exceptions=True)
    found: dict[str, dict[str, Any]] = {}
    for where, answer in zip(asked, answers, strict=True):
        if isinstance(answer, NoAnswer | MalformedMessage | NotActive):
            found[where] = {"error": str(answer)}
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found[where] = answer
    return found


def words(message: StateMessage) -> dict[str, Any]:
    status: dict[str, Any] = {"state": message.state.name.lower()}
    if message.role is None:
        return status | {"guard": "none", "safe": False, "serving": message.state.name == "ACTIVE"}
    return status | {
        "role": message.role.name.lower(),
        "serving": wire.Flag.SERVES in message.flags,
        "guard": "witness" if wire.Flag.WITNESS in message.flags else "fenced",
        "safe": wire.Flag.WITNESS in message.flags,
        "ballot": str(message.ballot),
        "node": f"{message.node:016x}",
        "incarnation": message.incarnation,
        "heartbeat_ms": message.heartbeat_ms,
        "hears_peer": bool(message.heard_sequence),
        "claims": wire.Flag.CLAIMS in message.flags,
        "yields": wire.Flag.YIELDS in message.flags,
    }


async def order(control: str, kind: wire.RequestKind, timeout_s: float, security: Secured | None = None) -> dict[str, Any]:
    """Send an order to the control socket of a server and return its answer."""
    header = wire.RequestHeader(kind, runtime.current().random_bits(64), 1)
    async with asking(core.DEALER, control, timeout_s, security) as socket:
        await socket.send_multipart([b"", wire.encode_request_header(header)])
        frames = await socket.recv_multipart()
    if len(frames) != 3:
        raise MalformedMessage(f"answer of {len(frames)} frames")
    reply = wire.decode_reply_header(frames[1])
    content = json_or_none(frames[2])
    if not isinstance(content, dict):
        raise MalformedMessage("answer is not a JSON object")
    if reply.kind is not wire.ReplyKind.REPLY:
        raise NotActive(str(content.get("reason", "refused")), active=str(content.get("active", "")))
    return content


async def look_at_witness(witness: str, timeout_s: float, security: Secured | None = None) -> dict[str, Any]:
    async with asking(core.DEALER, witness, timeout_s, security) as socket:
        await socket.send(wire.encode_question(wire.Question(wire.QuestionKind.LOOK, runtime.current().random_bits(64))))
        answer = wire.decode_answer(await socket.recv())
    cannot = answer.kind is wire.WitnessAnswerKind.NOT_WRITTEN
    found = {"holder": str(answer.holder), "highest": str(answer.highest), "left_ms": answer.wait_ms}
    return found | ({"trouble": "the ballot file cannot be written"} if cannot else {})
