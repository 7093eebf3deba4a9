"""Before leading, ask the other half whether our data is at least as new as its own (specs/titanic.md §11)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import core
from core.rpc.connect_times import with_connect_times
from titanic.mirror.succession import Answer
from titanic.wire.mirror_frames import OK, BadCall, Call, pack_pair, unpack_pair

if TYPE_CHECKING:
    from core.security.credentials import Secured
    from titanic.mirror.succession import Lineage

_ANSWERS: Final = {answer.value.encode(): answer for answer in Answer}


async def ask_peer(
    endpoint: str, lineage: Lineage, retry_s: float, *, context: core.Context | None = None, security: Secured | None = None
) -> Answer:
    """Ask the other half every `retry_s` seconds until it answers. Cancel-safe."""
    own = core.context_for(context, security)
    try:
        async with own.socket(core.DEALER, linger=0, **with_connect_times({})) as socket:
            socket.connect(endpoint)
            number = 0
            while True:
                number += 1
                await socket.send_multipart([*pack_pair(0, number), Call.CONSULT.value, lineage.encode()])
                try:
                    async with asyncio.timeout(retry_s):
                        while (answer := _answer_in(await socket.recv_multipart())) is None:
                            continue
                        return answer
                except TimeoutError:
                    continue
    finally:
        if context is None:
            await own.__aexit__(None, None, None)


def _answer_in(frames: list[bytes]) -> Answer | None:
    try:
        session, _ = unpack_pair(frames)
    except BadCall:
        return None
    return _ANSWERS.get(frames[3]) if len(frames) > 3 and session == 0 and frames[2] == OK else None
