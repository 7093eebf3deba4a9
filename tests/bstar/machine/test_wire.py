from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bstar.errors import MalformedMessage
from bstar.machine.ballot import COUNTER_MAX, NO_BALLOT, Ballot
from bstar.machine.fsm import State
from bstar.machine.signing import MAC_OCTETS, PairKey, Trust
from bstar.machine.wire import (
    CLIENT_TOPIC,
    STATE_TOPIC,
    WITNESS_TOPIC,
    Flag,
    Question,
    QuestionKind,
    ReplyHeader,
    ReplyKind,
    RequestHeader,
    RequestKind,
    StateMessage,
    WitnessAnswer,
    WitnessAnswerKind,
    decode_answer,
    decode_question,
    decode_reply_header,
    decode_request_header,
    decode_state,
    encode_answer,
    encode_digit,
    encode_question,
    encode_reply_header,
    encode_request_header,
    encode_state,
    signed_by,
)

NUMBERS = st.integers(1, 2**64 - 1)
BALLOTS = st.one_of(st.just(NO_BALLOT), st.builds(Ballot, st.integers(1, COUNTER_MAX), NUMBERS))
MESSAGE = StateMessage(
    State.ACTIVE, State.PRIMARY, Flag.SERVES | Flag.WITNESS, 0x0102030405060708, 2, 3, Ballot(5, 0x0102030405060708), 1, 9, 1000
)


# --- state messages -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", State)
def test_compatible_mode_is_one_digit(state: State) -> None:
    """Section 11, wire: one frame, one ASCII digit."""
    octets = encode_digit(state)
    assert octets == str(int(state)).encode()
    assert decode_state([octets]) == StateMessage(state)


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"12"],
        [b" 1"],
        [b"1\0"],
        [b"3 "],
        [b"\xb3"],
        ["３".encode()],
        [],
        [b"1", b""],
        [b"1", b"2"],
        [STATE_TOPIC],
    ],
    ids=repr,
)
def test_anything_else_is_no_state(frames: list[bytes]) -> None:
    """BST-07."""
    with pytest.raises(MalformedMessage):
        decode_state(frames)


def test_no_other_octet_is_a_state() -> None:
    """BST-07."""
    for octet in set(range(256)) - set(b"1234"):
        try:
            found = decode_state([bytes([octet])])
        except MalformedMessage:
            continue
        pytest.fail(f"octet {octet}: {found}")


def test_ballot_message_bytes() -> None:
    """The layout of the specification, byte by byte."""
    octets = encode_state(MESSAGE)
    assert octets == (
        b"BSTARS\x0131"
        b"\x06"
        + bytes.fromhex("0102030405060708 0000000000000002 0000000000000003")
        + bytes.fromhex("0000000000000005 0102030405060708 0000000000000001 0000000000000009 000003e8")
    )
    assert len(octets) == 70
    assert decode_state([octets]) == MESSAGE


@given(
    st.sampled_from(State),
    st.sampled_from([State.PRIMARY, State.BACKUP]),
    st.integers(0, 15),
    NUMBERS,
    NUMBERS,
    NUMBERS,
    st.integers(1, COUNTER_MAX),
    st.integers(1, 2**32 - 1),
)
def test_ballot_message_comes_back(
    state: State, role: State, flags: int, node: int, incarnation: int, sequence: int, counter: int, heartbeat_ms: int
) -> None:
    message = StateMessage(state, role, Flag(flags), node, incarnation, sequence, Ballot(counter, node), 0, 0, heartbeat_ms)
    assert decode_state([encode_state(message)]) == message


def changed(at: int, octets: bytes) -> bytes:
    whole = encode_state(MESSAGE)
    return whole[:at] + octets + whole[at + len(octets) :]


@pytest.mark.parametrize(
    "frame",
    [
        changed(0, b"X"),
        changed(6, b"\x02"),
        changed(7, b"0"),
        changed(7, b"5"),
        changed(8, b"0"),
        changed(8, b"3"),
        changed(9, b"\x10"),
        changed(10, bytes(8)),
        changed(18, bytes(8)),
        changed(26, bytes(8)),
        changed(34, bytes(8)),
        changed(34, b"\xff" * 8),
        changed(42, b"\xff" * 8),
        changed(34, bytes(16)),
        changed(66, bytes(4)),
        encode_state(MESSAGE) + b"\0",
        encode_state(MESSAGE)[:-1],
    ],
)
def test_ballot_messages_out_of_range(frame: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode_state([frame])


# --- witness and client ---------------------------------------------------------------------------------------------------------


def test_witness_bytes() -> None:
    question = Question(QuestionKind.KEEP, 7, Ballot(5, 9), 2000)
    octets = encode_question(question)
    numbers = "02 0000000000000007 0000000000000005 0000000000000009 000007d0"
    assert octets == b"BSTARW\x01" + bytes.fromhex(numbers)
    assert decode_question(octets) == question
    answer = WitnessAnswer(WitnessAnswerKind.REFUSED, 7, NO_BALLOT, Ballot(6, 8), 250)
    octets = encode_answer(answer)
    numbers = "02 0000000000000007 0000000000000000 0000000000000000 0000000000000006 0000000000000008 000000fa"
    assert octets == b"BSTARW\x01" + bytes.fromhex(numbers)
    assert decode_answer(octets) == answer


def test_client_bytes() -> None:
    header = RequestHeader(RequestKind.REQUEST, 1, 2, Ballot(3, 4))
    octets = encode_request_header(header)
    assert octets == b"BSTARC\x01" + bytes.fromhex("01 0000000000000001 0000000000000002 0000000000000003 0000000000000004")
    assert decode_request_header(octets) == header
    reply = ReplyHeader(ReplyKind.NOT_ACTIVE, 2, Ballot(3, 4), State.BACKUP, 1500)
    octets = encode_reply_header(reply)
    assert octets == b"BSTARC\x01" + bytes.fromhex("02 0000000000000002 0000000000000003 0000000000000004 02 000005dc")
    assert decode_reply_header(octets) == reply


@given(BALLOTS, BALLOTS, NUMBERS, st.integers(1, 2**32 - 1))
def test_witness_messages_come_back(first: Ballot, second: Ballot, nonce: int, ms: int) -> None:
    answer = WitnessAnswer(WitnessAnswerKind.GRANTED, nonce, first, second, ms)
    assert decode_answer(encode_answer(answer)) == answer
    question = Question(QuestionKind.LOOK if first == NO_BALLOT else QuestionKind.ASK, nonce, first, ms)
    assert decode_question(encode_question(question)) == question


@given(BALLOTS, NUMBERS, NUMBERS, st.integers(0, 2**32 - 1), st.sampled_from([None, State.PRIMARY, State.BACKUP]))
def test_client_headers_come_back(ballot: Ballot, client: int, sequence: int, ms: int, active: State | None) -> None:
    request = RequestHeader(RequestKind.STATUS, client, sequence, ballot)
    assert decode_request_header(encode_request_header(request)) == request
    reply = ReplyHeader(ReplyKind.FAILED, sequence, ballot, active, ms)
    assert decode_reply_header(encode_reply_header(reply)) == reply


DECODERS: list[tuple[Any, bytes, int]] = [
    (decode_question, WITNESS_TOPIC, 36),
    (decode_answer, WITNESS_TOPIC, 52),
    (decode_request_header, CLIENT_TOPIC, 40),
    (decode_reply_header, CLIENT_TOPIC, 37),
    (lambda frame: decode_state([frame]), STATE_TOPIC, 70),
]


@pytest.mark.parametrize("decode, topic, size", DECODERS)
@given(data=st.data())
def test_bytes_of_a_peer_raise_nothing_else(decode: Any, topic: bytes, size: int, data: st.DataObject) -> None:
    rest = size - len(topic)
    octets = data.draw(st.one_of(st.binary(max_size=80), st.binary(min_size=rest, max_size=rest).map(lambda tail: topic + tail)))
    with contextlib.suppress(MalformedMessage):
        assert decode(octets) is not None


@pytest.mark.parametrize(
    "decode, octets",
    [
        (decode_question, encode_question(Question(QuestionKind.LOOK, 1))[:7] + b"\x00" + bytes(28)),
        (decode_question, encode_question(Question(QuestionKind.LOOK, 1))[:7] + b"\x05" + bytes(28)),
        (decode_question, encode_question(Question(QuestionKind.RELEASE, 1))),
        (decode_question, encode_question(Question(QuestionKind.ASK, 1, Ballot(1, 1), 0))),
        (decode_question, encode_question(Question(QuestionKind.ASK, 1, Ballot(1, 0), 9))),
        (decode_answer, WITNESS_TOPIC + b"\x04" + bytes(44)),
        (decode_request_header, CLIENT_TOPIC + b"\x00" + bytes(32)),
        (decode_reply_header, CLIENT_TOPIC + b"\x01" + bytes(24) + b"\x03" + bytes(4)),
        (decode_reply_header, CLIENT_TOPIC + b"\x04" + bytes(29)),
    ],
)
def test_numbers_out_of_range(decode: Any, octets: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(octets)


KEY = PairKey(bytes(range(32)))
STATE = StateMessage(State.PASSIVE, State.BACKUP, Flag.WITNESS, 20, 3, 9, NO_BALLOT, 1, 5, 1000)


def test_a_code_counts_behind_a_topic_of_the_signed_form_alone() -> None:
    frame = encode_state(STATE, KEY)
    assert signed_by(KEY, frame)
    assert not signed_by(PairKey(bytes(32)), frame)
    assert not signed_by(KEY, KEY.signed(encode_state(STATE)))
    for topic in (b"BSTARC\x01", b"anything"):
        assert not signed_by(KEY, KEY.signed(topic + frame[7:-MAC_OCTETS]))
    with pytest.raises(MalformedMessage):
        decode_state([encode_state(STATE) + bytes(MAC_OCTETS)])
    assert decode_state([frame]) == STATE


def test_a_state_message_without_a_role_has_a_zero_and_is_refused() -> None:
    frame = encode_state(STATE._replace(role=None))
    assert frame[8:9] == b"0"
    with pytest.raises(MalformedMessage):
        decode_state([frame])


@pytest.mark.parametrize("ballot", [Ballot(0, 21), Ballot(4, 0), Ballot(4, 21)])
def test_a_ballot_of_another_node_is_refused(ballot: Ballot) -> None:
    with pytest.raises(MalformedMessage):
        decode_state([encode_state(STATE._replace(ballot=ballot))])


def test_without_a_key_nothing_is_demanded() -> None:
    assert not Trust(None, required=True).required
    assert not Trust(KEY, required=False).required
    assert Trust(KEY, required=True).required
