"""Damaged messages of the small protocols: their decoders give a value or a typed error, never one of Python's."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from bstar.machine import wire as bstar
from bstar.machine.ballot import Ballot
from bstar.machine.fsm import State
from core.machine.peer_text import read_json
from freelance.models import flp
from freelance.names import messages as names
from mdp.batch.requests import takes_tables
from mdp.shards.merging import merged
from mdp.wire import failover, lending, options, progress, shards
from peering import wire as peering
from pirate import ppp
from tests.fuzz.test_million import Damage
from tests.scenes.hunts import examples
from titanic.mirror.succession import Lineage
from titanic.wire import batch_frames, mirror_frames, tsp

if TYPE_CHECKING:
    from collections.abc import Callable

BALLOT = Ballot(7, 99)
# Correct messages; those of several frames are joined with "|", at which damaged ones are divided.
MESSAGES = [
    bstar.encode_state(bstar.StateMessage(State.ACTIVE, State.PRIMARY, node=1, incarnation=1, sequence=1)),
    bstar.encode_question(bstar.Question(bstar.QuestionKind.ASK, 1, BALLOT, 1000)),
    bstar.encode_answer(bstar.WitnessAnswer(bstar.WitnessAnswerKind.GRANTED, 1, BALLOT, BALLOT, 1000)),
    bstar.encode_request_header(bstar.RequestHeader(bstar.RequestKind.REQUEST, 1, 2, BALLOT)),
    bstar.encode_reply_header(bstar.ReplyHeader(bstar.ReplyKind.REPLY, 2, BALLOT)),
    b"|".join(failover.refusal(BALLOT, 0.5)),
    b"|".join(shards.greeting(4)),
    b"|".join(peering.encode_state(peering.StateMessage(b"x", 3))),
    b"|".join([b"", b"client", b"", b"body"]),
    b"SET|test|name|bind|2000|tcp://127.0.0.1:5555",
    b"WATCH|test|name||1000",
    b"|".join([b"echo", b"body"]),
    b"|".join([*tsp.encode_options(tsp.Options(b"key", 1, 2, 3, {"a": "b"})), b"echo", b"body"]),
    batch_frames.encode_rows([(b"key", [b"body"]), (b"other", [b"", b"x"])]),
    b"|".join(mirror_frames.pack_pair(1, 2)),
    mirror_frames.Hello(b"store", 3, False).encode(),
    mirror_frames.Swap({"a.seg": 10}, ["a.seg"], 3, b"store").encode(),
    b"|".join(lending.encode_offer(b"name", [(b"echo", 3)], 10_000)),
    progress.encode_progress(progress.Progress(0.5, "half")),
    options.encode_options({"key": b"k", "deadline": 100, "headers": {"a": "b"}}),
    msgpack.packb({"credit": 4, "metadata": {"mdp-batch": "arrow"}}),
    b'200|[{"name": "echo", "metadata": {"mdp-batch": "arrow"}}]',
]
# Each takes the frames of a message, or its first frame.
OF_FRAMES: list[Callable[[list[bytes]], object]] = [
    bstar.decode_state,
    failover.parse_membership,
    flp.decode_reply,
    flp.decode_request,
    lending.decode_offer,
    mirror_frames.unpack_pair,
    names.decode_request,
    partial(ppp.decode, simple=True),
    partial(ppp.decode, simple=False),
    peering.decode_state,
    peering.decode_worker,
    ppp.split_envelope,
    shards.parse_greeting,
    takes_tables,
    tsp.parse_request,
    lambda frames: merged(b"mmi.workers", [frames], {}, 1000),
]
OF_ONE: list[Callable[[bytes], Any]] = [
    batch_frames.decode_stages,
    partial(batch_frames.BatchChunk.decode, b"echo"),
    bstar.decode_answer,
    bstar.decode_question,
    bstar.decode_reply_header,
    bstar.decode_request_header,
    Lineage.decode,
    mirror_frames.Hello.decode,
    mirror_frames.Swap.decode,
    mirror_frames.unpack_argument,
    names.decode_entry,
    names.decode_record,
    options.decode_heartbeat_options,
    options.decode_ready_options,
    options.decode_request_options,
    progress.decode_progress,
    read_json,
    tsp.parse_status,
    tsp.parse_uuid,
]


def decoders(octets: bytes) -> list[Callable[[], object]]:
    frames = octets.split(b"|")
    return [*(partial(decode, frames) for decode in OF_FRAMES), *(partial(decode, octets) for decode in OF_ONE)]


def failure(decode: Callable[[], object]) -> Exception | None:
    try:
        decode()
    except Exception as error:
        return error
    return None


def test_every_decoder_has_its_own_errors() -> None:
    damage = Damage(MESSAGES, "small protocols")
    for _ in range(examples(2500)):
        for decode in decoders(damage.next()):
            error = failure(decode)
            if error is not None and type(error).__module__ == "builtins":
                pytest.fail(f"{decode}: {type(error).__name__} {error}")


@pytest.mark.parametrize("octets", MESSAGES)
def test_correct_messages_are_read(octets: bytes) -> None:
    """Damage is done to what the decoders know, or nothing would be tested."""
    assert any(failure(decode) is None for decode in decoders(octets) if getattr(decode, "func", None) is not read_json)
