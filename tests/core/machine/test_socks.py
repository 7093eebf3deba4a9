"""core.machine.socks: every way a proxy can answer, in any pieces."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.machine.socks import SocksError, SocksHandshake

OK = b"\5\0\0\1\x7f\0\0\1\0\x50"


def answered(handshake: SocksHandshake, *answers: bytes) -> list[bytes]:
    return [handshake.hello(), *(handshake.receive(answer) for answer in answers)]


@pytest.mark.parametrize(
    ("host", "target"),
    [("10.0.0.1", b"\1\x0a\0\0\1"), ("::1", b"\4" + bytes(15) + b"\1"), ("host.example", b"\3\x0chost.example")],
)
def test_without_a_name(host: str, target: bytes) -> None:
    handshake = SocksHandshake(host, 5555)
    assert answered(handshake, b"\5\0", OK + b"rest") == [b"\5\1\0", b"\5\1\0" + target + b"\x15\xb3", b"rest"]
    assert handshake.done


def test_with_a_name_and_password() -> None:
    handshake = SocksHandshake("h", 1, b"ann", b"secret")
    said = answered(handshake, b"\5\2", b"\1\0", b"\5\0\0\3\1x\0\0")
    assert said == [b"\5\2\0\2", b"\1\3ann\6secret", b"\5\1\0\3\1h\0\1", b""]
    assert handshake.done
    assert answered(SocksHandshake("h", 1, b"ann"), b"\5\0")[1][:3] == b"\5\1\0"  # the proxy wants none


@pytest.mark.parametrize(
    "answers",
    [
        *([b"\4\0"], [b"\5\xff"], [b"\5\2"], [b"HTTP/1.1 400"]),
        *([b"\5\0", reply] for reply in (b"\5\5\0\1" + bytes(6), b"\5\x63\0\1" + bytes(6), b"\4\0\0\1\0", b"\5\0\0\7\0")),
    ],
)
def test_refusals(answers: list[bytes]) -> None:
    with pytest.raises(SocksError, match="socks proxy"):
        answered(SocksHandshake("h", 1), *answers)


def test_a_password_is_refused_and_texts_have_a_limit() -> None:
    with pytest.raises(SocksError, match="password"):
        answered(SocksHandshake("h", 1, b"ann"), b"\5\2", b"\1\1")
    with pytest.raises(SocksError, match="255"):
        SocksHandshake("h" * 256, 1)


@pytest.mark.parametrize(
    ("answer", "reason"), [(b"\4\0", "not a SOCKS 5 proxy"), (b"HT", "not a SOCKS 5 proxy"), (b"\5\xff", "ways to auth")]
)
def test_a_proxy_of_another_kind_and_one_that_refuses_are_different_errors(answer: bytes, reason: str) -> None:
    with pytest.raises(SocksError, match=reason):
        answered(SocksHandshake("h", 1, b"ann"), answer)


@pytest.mark.parametrize(("answer", "code"), [(b"\5\5\0\1", 5), (b"\5\x63\0\1", 0x63), (b"\4\0\0\1", 0), (b"\5\0\0\7", 0)])
def test_an_error_has_the_answer_of_the_proxy(answer: bytes, code: int) -> None:
    with pytest.raises(SocksError) as caught:
        answered(SocksHandshake("h", 1), b"\5\0", answer + bytes(6))
    assert caught.value.code == code
    with pytest.raises(SocksError) as caught:
        answered(SocksHandshake("h", 1, b"ann"), b"\5\2", b"\1\1")
    assert caught.value.code == 2


def test_the_longest_texts_are_sent_and_nothing_is_done_before_the_reply() -> None:
    handshake = SocksHandshake("h" * 255, 1, b"u" * 255, b"p" * 255)
    assert not handshake.done
    said = answered(handshake, b"\5\2", b"\1\0\5", OK[1:])
    assert said[1] == b"\1\xff" + b"u" * 255 + b"\xff" + b"p" * 255
    assert said[2:] == [b"\5\1\0\3\xff" + b"h" * 255 + b"\0\1", b""]
    assert handshake.done


@given(st.lists(st.binary(max_size=12), max_size=6))
def test_a_proxy_can_cause_no_other_error(answers: list[bytes]) -> None:
    handshake = SocksHandshake("h", 1, b"ann", b"secret")
    try:
        said = answered(handshake, *answers)
    except SocksError:
        return
    assert len(said) == len(answers) + 1


def test_pieces_of_any_size() -> None:
    handshake = SocksHandshake("h", 1, b"ann", b"secret")
    said = b"".join(handshake.receive(bytes((octet,))) for octet in b"\5\2\1\0" + OK[:-1])
    assert not handshake.done
    said += handshake.receive(OK[-1:])
    assert said == b"\1\3ann\6secret\5\1\0\3\1h\0\1"
    assert handshake.done
