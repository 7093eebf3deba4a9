"""Common parts of requests to one service: names, numbers, options on the wire."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest

from core.errors import LocalProtocolError
from core.zmtp.frames import Encoded
from mdp.client.calls import CALL_OPTIONS, Call, CallDefaults, CallOptions, MapOptions, PendingRequest
from mdp.wire.options import DEADLINE_MS_MAX, OPTIONS_BYTES_MAX, decode_request_options, encode_options
from mdp.wire.policies import PRIORITIES

if TYPE_CHECKING:
    from collections.abc import Mapping

DAY_S = DEADLINE_MS_MAX / 1000


def pending(timeout_s: float = 1.0, **options: Any) -> PendingRequest:
    return PendingRequest(Call("echo", timeout_s=timeout_s, attempts=3, **options), (b"x",))


def test_the_options_of_a_request_are_listed() -> None:
    """Compiled, their class does not have the names of its base."""
    assert {*CallOptions.__annotations__, *MapOptions.__annotations__} == {*CALL_OPTIONS}


@pytest.mark.parametrize("name", ["", "x" * 256, "a\nb", b"\xff\xfe", b"a\x00b"])
def test_a_call_refuses_names_no_service_can_have(name: str | bytes) -> None:
    """MDP-05: 1 to 255 octets of printable text."""
    with pytest.raises(LocalProtocolError):
        Call(name, timeout_s=1, attempts=1)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout_s": 0},
        {"timeout_s": -1},
        {"timeout_s": float("nan")},
        {"attempts": 0},
        {"deadline_s": 0},
        {"deadline_s": 100_000},
        {"key": b""},
        {"deadline_s": DAY_S + 0.01},
        {"key": b"k" * 256},
        {"trace": {"x": "y" * 9000}},
        {"priority": "urgent"},
    ],
)
def test_a_call_refuses_numbers_out_of_range(options: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"positive|deadline|key|options|priority"):
        Call("echo", **{"timeout_s": 1.0, "attempts": 1, **options})


@pytest.mark.parametrize("wrong", [5, 0, 3.0, True, ["echo"], None])
def test_a_number_is_neither_a_service_nor_a_key(wrong: Any) -> None:
    """The bytes of a number would be zeros, and order 17 the same key as any other of 17 zeros."""
    with pytest.raises(TypeError, match="service name"):
        Call(wrong, timeout_s=1, attempts=1)
    with pytest.raises(TypeError, match="key is"):
        Call("echo", timeout_s=1, attempts=1).with_key(wrong)


def test_a_call_without_options_has_an_empty_options_frame() -> None:
    assert Call("echo", timeout_s=1, attempts=1).prefix == b"\x01\x04echo\x01\x00"


def test_options_of_a_call_are_those_the_broker_decodes() -> None:
    trace = {"traceparent": "00-1-2-03"}
    call = Call("echo", timeout_s=1, attempts=5, deadline_s=3, once=True, key=b"k", wait=True, trace=trace, priority="high")
    service, octets = Encoded(call.prefix_at(1.2345) + b"\x00\x00").frames()[:2]
    options = decode_request_options(octets)
    assert (service, options.deadline_ms, options.once, options.key, options.wait) == (b"echo", 1234, True, b"k", True)
    assert (options.trace, options.priority) == (trace, PRIORITIES["high"])
    assert call.attempts == 1  # at most once means sent at most once


def test_a_call_with_a_key_is_the_same_call_otherwise() -> None:
    plain = Call("echo", timeout_s=1, attempts=5, deadline_s=3, wait=True, streaming=True)
    keyed = plain.with_key("order-17")
    for name in ("service", "name", "timeout_s", "attempts", "deadline_s", "once", "streaming", "headers", "prefix_01"):
        assert getattr(keyed, name) == getattr(plain, name)
    options = decode_request_options(Encoded(keyed.prefix + b"\x00\x00").frames()[1])
    assert (options.key, options.wait) == (b"order-17", True)
    assert decode_request_options(Encoded(plain.prefix + b"\x00\x00").frames()[1]).key is None
    for wrong in ("", "k" * 256):
        with pytest.raises(ValueError, match="key"):
            plain.with_key(wrong)


@pytest.mark.parametrize("left_s", [-1.0, 0.0, 1e-9, 1e9])
def test_a_deadline_on_the_wire_is_in_range_whatever_is_left(left_s: float) -> None:
    call = Call("echo", timeout_s=1, attempts=1, deadline_s=1)
    options = decode_request_options(Encoded(call.prefix_at(left_s) + b"\x00\x00").frames()[1])
    assert options.deadline_ms is not None
    assert options.deadline_ms >= 1


@pytest.mark.parametrize("deadline_s", [0.0005, DAY_S])
def test_a_call_takes_deadlines_up_to_a_day(deadline_s: float) -> None:
    assert Call("echo", timeout_s=1.0, attempts=1, deadline_s=deadline_s).deadline_s == deadline_s


def test_a_call_takes_options_up_to_what_a_broker_does() -> None:
    most = OPTIONS_BYTES_MAX - 32  # the deadline is added when it is sent
    spare = most - len(encode_options({"trace": {"x": "y" * 3000}}))
    call = Call("echo", timeout_s=1.0, attempts=1, deadline_s=1.0, trace={"x": "y" * (3000 + spare)})
    octets = Encoded(call.prefix_at(DAY_S) + b"\x00\x00").frames()[1]
    assert most < len(octets) <= OPTIONS_BYTES_MAX
    with pytest.raises(ValueError, match=f"options of {most + 1} bytes"):
        Call("echo", timeout_s=1.0, attempts=1, trace={"x": "y" * (3001 + spare)})


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout": 0.0},
        {"timeout": "1"},
        {"deadline": -1.0},
        {"attempts": 0},
        {"attempts": 1.5},
        {"once": 1},
        {"wait": "yes"},
        {"tiemout": 1.0, "other": 2.0},
    ],
)
def test_defaults_refuse_what_no_request_can_have(wrong: Any) -> None:
    name = next(iter(wrong))
    with pytest.raises((TypeError, ValueError), match=name if name != "tiemout" else "tiemout; did you mean timeout"):
        CallDefaults(1.0, 1).merged(wrong)


@pytest.mark.parametrize(("key", "third"), [("orders", "orders-3"), (b"orders", b"orders-3"), (bytearray(b"orders"), b"orders-3")])
def test_a_common_key_of_many_requests_has_their_index(key: Any, third: str | bytes) -> None:
    key_of = CallDefaults(1.0, 1, key=key).key_of
    assert key_of is not None
    assert key_of(3) == third
    assert CallDefaults(1.0, 1).key_of is None


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"deadline_s": 3},
        {"wait": True},
        {"once": True},
        {"headers": {"a": "b"}},
        {"priority": "high"},
        {"trace": {"traceparent": "00-1-2-03"}},
        {"user": "ann"},
        {"progress": print},
    ],
)
def test_a_key_of_any_length_is_written_as_msgpack_writes_it(options: Mapping[str, Any]) -> None:
    plain = Call("echo", timeout_s=1, attempts=5, **options)
    for size in range(1, 256):
        keyed = plain.with_key(b"k" * size).with_key(b"x" * size)  # and of a call that has one already
        assert keyed.prefix == Call("echo", timeout_s=1, attempts=5, key=b"x" * size, **options).prefix
        assert keyed.prefix_at(1.0) == Call("echo", timeout_s=1, attempts=5, key=b"x" * size, **options).prefix_at(1.0)


def test_garbage_collection_leaves_the_reply_that_a_caller_holds() -> None:
    """Compiled, it became an empty list when its request was garbage."""
    body, reply, error, caller = list[Any](), [b"reply"], Exception("of"), [b"caller"]
    one = PendingRequest(Call("echo", timeout_s=1.0, attempts=3), body)
    one.reply, one.error, one.caller = reply, error, caller
    body.append(one)
    error.args = (body,)
    del one, body
    gc.collect()
    assert (reply, caller) == ([b"reply"], [b"caller"])
