from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import AuthenticationRefused, HandshakeError, RemoteProtocolError
from core.zmtp.commands import encode_metadata
from core.zmtp.mechanism import NullMechanism
from core.zmtp.zap import ZapReply, ZapRequest, claimed, must_ask, verdict_without_handler

FRAME = st.binary(max_size=12) | st.sampled_from([b"", b"1.0", b"1", b"200", b"NULL", b"PLAIN", b"CURVE"])
SOME = st.binary(min_size=1, max_size=8)


@given(
    st.builds(
        ZapRequest,
        mechanism=st.just(b"PLAIN"),
        domain=st.binary(max_size=8),
        address=st.binary(max_size=8),
        identity=st.binary(max_size=8),
        credentials=st.tuples(st.binary(max_size=8), st.binary(max_size=8)),
        request_id=st.binary(max_size=8),
        envelope=st.lists(SOME, max_size=3).map(tuple),
    )
)
def test_requests_survive_the_wire(request: ZapRequest) -> None:
    assert ZapRequest.decode(request.encode()) == request


@given(
    st.sampled_from([b"200", b"300", b"400", b"500"]),
    st.binary(max_size=8),
    st.binary(max_size=8),
    st.dictionaries(SOME.map(bytes.lower), st.binary(max_size=300), max_size=4),
    st.lists(SOME, max_size=3),
)
def test_replies_survive_the_wire(status: bytes, text: bytes, user: bytes, metadata: dict[bytes, bytes], envelope: list[bytes]) -> None:
    request = ZapRequest(request_id=b"opaque", envelope=tuple(envelope))
    reply = ZapReply(status, text, user, metadata)
    frames = reply.encode(request)
    assert frames[: len(envelope)] == envelope
    assert ZapReply.decode(frames[len(envelope) :], request) == reply


@given(st.lists(FRAME, max_size=12))
def test_any_frames_are_a_request_or_refused(frames: list[bytes]) -> None:
    try:
        request = ZapRequest.decode(frames)
    except RemoteProtocolError:
        return
    assert request.encode() == frames


@given(st.lists(FRAME, max_size=9))
def test_any_frames_are_a_reply_or_refused(frames: list[bytes]) -> None:
    try:
        reply = ZapReply.decode(frames, ZapRequest())
    except HandshakeError:
        return
    assert reply.status_code in (b"200", b"300", b"400", b"500")


def test_zap_11_sixteen_proxies_may_stand_between() -> None:
    for count, fits in ((16, True), (17, False)):
        request = ZapRequest(envelope=(b"via",) * count)
        if fits:
            assert ZapRequest.decode(request.encode()) == request
        else:
            with pytest.raises(RemoteProtocolError, match="no delimiter"):
                ZapRequest.decode(request.encode())


@pytest.mark.parametrize(("mechanism", "count"), [(b"NULL", 0), (b"PLAIN", 2), (b"CURVE", 1)])
def test_zap_01_each_mechanism_has_its_number_of_credentials(mechanism: bytes, count: int) -> None:
    for number in range(4):
        request = ZapRequest(mechanism, credentials=(b"x",) * number)
        if number == count:
            assert ZapRequest.decode(request.encode()) == request
        else:
            with pytest.raises(RemoteProtocolError, match=f"{number} credentials"):
                ZapRequest.decode(request.encode())


def test_no_peer_sets_its_own_user_id() -> None:
    """ZAP-04."""
    metadata = encode_metadata([(b"User-Id", b"root"), (b"CURVE-Key", bytes(32)), (b"X-Mine", b"1")])
    assert claimed(metadata) == {b"x-mine": b"1"}
    mechanism = NullMechanism(b"", metadata_bytes_max=100)
    mechanism.start()
    mechanism.receive(b"\x05READY" + metadata)
    assert mechanism.peer_metadata == {b"x-mine": b"1"}


def test_credentials_do_not_show_in_a_log_line() -> None:
    assert "secret" not in repr(ZapRequest(b"PLAIN", credentials=(b"admin", b"secret")))


def test_a_verdict_names_the_peer_and_adds_properties_but_renames_no_socket() -> None:
    """ZAP-04."""
    mechanism = NullMechanism(b"", metadata_bytes_max=100)
    mechanism.zap_request = ZapRequest()
    reply = ZapReply(b"200", user_id=b"caf\xe9", metadata={b"Shift": b"night", b"Identity": b"x", b"SOCKET-TYPE": b"PUB"})
    assert mechanism.apply_verdict(reply) == {b"shift": b"night", b"user-id": b"caf\xe9"}
    assert mechanism.user_id == "caf\\xe9"
    assert mechanism.zap_request is None
    assert mechanism.last_words == []


@pytest.mark.parametrize("status,words", [(b"300", []), (b"400", [b"\x05ERROR\x03400"]), (b"500", [b"\x05ERROR\x03500"])])
def test_a_verdict_against_the_peer_leaves_the_right_last_words(status: bytes, words: list[bytes]) -> None:
    mechanism = NullMechanism(b"", metadata_bytes_max=100)
    mechanism.zap_request = ZapRequest()
    with pytest.raises(AuthenticationRefused) as caught:
        mechanism.apply_verdict(ZapReply(status, user_id=b"nobody"))
    assert caught.value.status == status
    assert mechanism.last_words == words
    assert mechanism.user_id is None
    assert mechanism.zap_request is None


@pytest.mark.parametrize(
    "mechanism,domain,enforce,expected",
    [
        (b"NULL", b"", False, (False, True)),
        (b"NULL", b"", True, (False, False)),
        (b"NULL", b"d", False, (True, True)),
        (b"NULL", b"d", True, (True, False)),
        (b"PLAIN", b"", False, (True, False)),
        (b"PLAIN", b"d", False, (True, False)),
        (b"PLAIN", b"d", True, (True, False)),
        (b"CURVE", b"", False, (True, True)),
        (b"CURVE", b"", True, (False, False)),
        (b"CURVE", b"d", False, (True, True)),
        (b"CURVE", b"d", True, (True, False)),
    ],
)
def test_zap_07_who_asks_and_what_stands_in_for_an_answer(mechanism: bytes, domain: bytes, enforce: bool, expected: Any) -> None:
    asks, lets_in = expected
    assert must_ask(mechanism, domain, enforce_domain=enforce) is asks
    assert verdict_without_handler(mechanism, enforce_domain=enforce).accepted is lets_in
