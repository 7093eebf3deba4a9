"""Messages of Binary Star: state, questions and answers of the witness, headers of requests and replies. Pure.

Source: BST-07 and the layouts of `specs/bstar.md` section 4. Integers are unsigned, network byte order.

Messages between servers and with the witness have two forms: version 1, and version 2, the same followed by the MAC of a pair key
(`signing.py`). The decoders accept both and ignore the MAC; `signed_by` checks it.

Every decoder returns a record or raises `MalformedMessage`; no message of a peer can raise anything else.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from typing import Any, Final, NamedTuple

from bstar.errors import MalformedMessage
from bstar.machine.ballot import COUNTER_MAX, NO_BALLOT, Ballot
from bstar.machine.fsm import State
from bstar.machine.signing import MAC_OCTETS, PairKey

# The last byte of a topic is the version, so each version is a topic of its own.
STATE_TOPIC: Final = b"BSTARS\x01"
SIGNED_STATE_TOPIC: Final = b"BSTARS\x02"
WITNESS_TOPIC: Final = b"BSTARW\x01"
SIGNED_WITNESS_TOPIC: Final = b"BSTARW\x02"
CLIENT_TOPIC: Final = b"BSTARC\x01"

DIGITS: Final = (b"1", b"2", b"3", b"4")
_STATE_OF_DIGIT: Final = {digit: State(int(digit)) for digit in DIGITS}


def signed_by(key: PairKey | None, frame: bytes) -> bool:
    """Return whether a frame is in the signed form with a valid MAC of this key, which there must be."""
    signed = frame.startswith((SIGNED_STATE_TOPIC, SIGNED_WITNESS_TOPIC)) and len(frame) > MAC_OCTETS
    return key is not None and signed and key.proves(frame[:-MAC_OCTETS], frame[-MAC_OCTETS:])


def _unpacked(frame: bytes, topics: tuple[bytes, ...], layout: struct.Struct, what: str) -> tuple[Any, ...]:
    """Return the fields after the topic; a frame of the second topic has a MAC behind them."""
    if len(frame) == layout.size and frame.startswith(topics[0]):
        return layout.unpack(frame)[1:]
    if len(frame) == layout.size + MAC_OCTETS and frame.startswith(topics[1:]):
        return layout.unpack(frame[:-MAC_OCTETS])[1:]
    raise MalformedMessage(f"{what} of {len(frame)} bytes")


def _packed(topics: tuple[bytes, ...], layout: struct.Struct, key: PairKey | None, *fields: int) -> bytes:
    """Return a frame: with a key it has the second topic, and ends with the MAC."""
    if key is None:
        return layout.pack(topics[0], *fields)
    return key.signed(layout.pack(topics[1], *fields))


_STATE_TOPICS: Final = (STATE_TOPIC, SIGNED_STATE_TOPIC)
_WITNESS_TOPICS: Final = (WITNESS_TOPIC, SIGNED_WITNESS_TOPIC)
_CLIENT_TOPICS: Final = (CLIENT_TOPIC,)


class Flag(IntFlag):
    """Flags of a state message."""

    YIELDS = 0x01  # passive by order of the operator: asks the peer to take over
    SERVES = 0x02  # may answer clients at this moment
    WITNESS = 0x04  # serves only with a lease
    CLAIMS = 0x08  # has a running claim


_FLAGS_KNOWN: Final = int(Flag.YIELDS | Flag.SERVES | Flag.WITNESS | Flag.CLAIMS)


class StateMessage(NamedTuple):
    """State message of a server, sent once a heartbeat and at each change."""

    state: State
    role: State | None = None  # PRIMARY or BACKUP; None in the message of a stock member, which has the state only
    flags: Flag = Flag(0)
    node: int = 0  # id of the sender, 0 for a stock member
    incarnation: int = 0  # grows with each start of the sender
    sequence: int = 0  # grows with each message of an incarnation, from 1
    ballot: Ballot = NO_BALLOT  # ACTIVE: the ballot of the sender. Else: the highest counter it knows, with its own node id
    heard_incarnation: int = 0  # of the newest message received from the peer, 0 for none
    heard_sequence: int = 0  # the same
    heartbeat_ms: int = 0  # of the sender; both servers must have the same (BST-15)


_STATE: Final = struct.Struct(">7sBBBQQQQQQQI")


def encode_digit(state: State) -> bytes:
    return DIGITS[state - 1]


def encode_state(message: StateMessage, key: PairKey | None = None) -> bytes:
    """Return the state message of the ballot mode: 70 bytes, or 86 with the MAC of a key."""
    return _packed(
        _STATE_TOPICS,
        _STATE,
        key,
        ord("0") + message.state,
        ord("0") + (message.role or 0),
        message.flags,
        message.node,
        message.incarnation,
        message.sequence,
        *message.ballot,
        message.heard_incarnation,
        message.heard_sequence,
        message.heartbeat_ms,
    )


def decode_state(frames: list[bytes]) -> StateMessage:
    """Decode a state message: `[digit]`, `[70 bytes]` or `[86 bytes]` (BST-07)."""
    if len(frames) != 1:
        raise MalformedMessage(f"state message of {len(frames)} frames")
    frame = frames[0]
    state = _STATE_OF_DIGIT.get(bytes(frame)) if len(frame) == 1 else None
    if state is not None:
        return StateMessage(state)
    fields = _unpacked(frame, _STATE_TOPICS, _STATE, "state message that is neither a digit nor a ballot message,")
    digit, role, flags, node, incarnation, sequence, counter, elector, heard_incarnation, heard_sequence, heartbeat_ms = fields
    if not ord("1") <= digit <= ord("4") or not ord("1") <= role <= ord("2"):
        raise MalformedMessage("state or role out of range")
    if flags & ~_FLAGS_KNOWN:
        raise MalformedMessage(f"unknown flags {flags:#04x}")
    if not node or not incarnation or not sequence or not heartbeat_ms:
        raise MalformedMessage("node, incarnation, sequence or heartbeat is zero")
    state = State(digit - ord("0"))
    if elector != node and not (counter == 0 and elector == 0):
        raise MalformedMessage("ballot of another node")
    if state is State.ACTIVE and not counter:
        raise MalformedMessage("active without a ballot")
    return StateMessage(
        state,
        State(role - ord("0")),
        Flag(flags),
        node,
        incarnation,
        sequence,
        _ballot(counter, elector),
        heard_incarnation,
        heard_sequence,
        heartbeat_ms,
    )


def _ballot(counter: int, node: int) -> Ballot:
    if counter > COUNTER_MAX:
        raise MalformedMessage(f"ballot counter {counter} is above {COUNTER_MAX}")
    if bool(counter) != bool(node):
        raise MalformedMessage("half a ballot")
    return Ballot(counter, node)


# --- witness ------------------------------------------------------------------------------------------------------------------


class QuestionKind(IntEnum):
    """Kind of a question to the witness."""

    ASK = 1  # the lease, for a ballot
    KEEP = 2  # its renewal
    RELEASE = 3  # it has stopped serving under the ballot
    LOOK = 4  # status, for operators


class WitnessAnswerKind(IntEnum):
    """Kind of an answer of the witness."""

    GRANTED = 1
    REFUSED = 2
    STATUS = 3  # to LOOK
    TOO_FAR = 16  # refused: the ballot is implausibly high
    NOT_WRITTEN = 17  # refused: the witness cannot write its file; to LOOK: as STATUS, and the last write failed
    NOT_SIGNED = 18  # refused: the question is not signed with the witness's pair key


class Question(NamedTuple):
    """One question to the witness."""

    kind: QuestionKind
    nonce: int  # returned in the answer, to recognise old ones
    ballot: Ballot = NO_BALLOT  # of the server that asks, with its node id
    lease_ms: int = 0  # requested length of the lease


class WitnessAnswer(NamedTuple):
    """One answer of the witness."""

    kind: WitnessAnswerKind
    nonce: int
    holder: Ballot  # ballot that has the lease after this answer, `NO_BALLOT` for none
    highest: Ballot  # highest ballot ever granted
    wait_ms: int  # GRANTED: length of the lease; STATUS: the rest of it; refused: when to ask again


_ANSWER_KINDS: Final = frozenset(int(kind) for kind in WitnessAnswerKind)
_QUESTION: Final = struct.Struct(">7sBQQQI")
_ANSWER: Final = struct.Struct(">7sBQQQQQI")


def encode_question(question: Question, key: PairKey | None = None) -> bytes:
    """Return a question to the witness, one frame of 36 bytes, or 52 with the MAC of a key."""
    return _packed(_WITNESS_TOPICS, _QUESTION, key, question.kind, question.nonce, *question.ballot, question.lease_ms)


def decode_question(frame: bytes) -> Question:
    kind, nonce, counter, node, lease_ms = _unpacked(frame, _WITNESS_TOPICS, _QUESTION, "question")
    if not QuestionKind.ASK <= kind <= QuestionKind.LOOK:
        raise MalformedMessage(f"unknown question {kind}")
    ballot = _ballot(counter, node)
    if kind != QuestionKind.LOOK and ballot == NO_BALLOT:
        raise MalformedMessage("question without a ballot")
    if kind in (QuestionKind.ASK, QuestionKind.KEEP) and not lease_ms:
        raise MalformedMessage("lease of no length")
    return Question(QuestionKind(kind), nonce, ballot, lease_ms)


def encode_answer(answer: WitnessAnswer, key: PairKey | None = None) -> bytes:
    """Return an answer of the witness, one frame of 52 bytes, or 68 with the MAC of a key."""
    return _packed(_WITNESS_TOPICS, _ANSWER, key, answer.kind, answer.nonce, *answer.holder, *answer.highest, answer.wait_ms)


def decode_answer(frame: bytes) -> WitnessAnswer:
    kind, nonce, *ballots, wait_ms = _unpacked(frame, _WITNESS_TOPICS, _ANSWER, "answer")
    if kind not in _ANSWER_KINDS:
        raise MalformedMessage(f"unknown answer {kind}")
    return WitnessAnswer(WitnessAnswerKind(kind), nonce, _ballot(*ballots[:2]), _ballot(*ballots[2:]), wait_ms)


# --- client -------------------------------------------------------------------------------------------------------------------


class RequestKind(IntEnum):
    """Kind of a request."""

    REQUEST = 1
    STATUS = 2  # operators, on the control socket
    SWITCHOVER = 3  # the same


class ReplyKind(IntEnum):
    """Kind of a reply."""

    REPLY = 1
    NOT_ACTIVE = 2
    FAILED = 3  # the handler failed; the body is one frame of text


class RequestHeader(NamedTuple):
    """Header of a request: one frame before the body."""

    kind: RequestKind
    client: int  # random, new at each start; (client, sequence) is the idempotency key (BST-24, IDM-01)
    sequence: int  # of the request at this client, the same when it is sent again
    seen: Ballot = NO_BALLOT  # highest ballot of any reply the client accepted


class ReplyHeader(NamedTuple):
    """Header of a reply: one frame before the body."""

    kind: ReplyKind
    sequence: int  # of the request (BST-23)
    ballot: Ballot = NO_BALLOT  # of the server; NOT_ACTIVE: the highest counter it knows
    # NOT_ACTIVE: role of the active server if known, else None. In a reply: role of the server if it vouches that no server is active
    # under the higher ballot of the request (BST-45), else None
    active: State | None = None
    retry_ms: int = 0  # NOT_ACTIVE: when another attempt at this server may succeed


_REQUEST: Final = struct.Struct(">7sBQQQQ")
_REPLY: Final = struct.Struct(">7sBQQQBI")


def encode_request_header(header: RequestHeader) -> bytes:
    """Return the header frame of a request, 40 bytes."""
    return _REQUEST.pack(CLIENT_TOPIC, header.kind, header.client, header.sequence, *header.seen)


def decode_request_header(frame: bytes) -> RequestHeader:
    kind, client, sequence, counter, node = _unpacked(frame, _CLIENT_TOPICS, _REQUEST, "request header")
    if not RequestKind.REQUEST <= kind <= RequestKind.SWITCHOVER:
        raise MalformedMessage(f"unknown request {kind}")
    return RequestHeader(RequestKind(kind), client, sequence, _ballot(counter, node))


def encode_reply_header(header: ReplyHeader) -> bytes:
    """Return the header frame of a reply, 37 bytes."""
    return _REPLY.pack(CLIENT_TOPIC, header.kind, header.sequence, *header.ballot, header.active or 0, header.retry_ms)


def decode_reply_header(frame: bytes) -> ReplyHeader:
    kind, sequence, counter, node, active, retry_ms = _unpacked(frame, _CLIENT_TOPICS, _REPLY, "reply header")
    if not ReplyKind.REPLY <= kind <= ReplyKind.FAILED or active > State.BACKUP:
        raise MalformedMessage(f"unknown reply {kind} or role {active}")
    return ReplyHeader(ReplyKind(kind), sequence, _ballot(counter, node), State(active) if active else None, retry_ms)
