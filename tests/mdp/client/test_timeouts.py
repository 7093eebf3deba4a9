from __future__ import annotations

import random
from math import inf
from typing import TYPE_CHECKING, Any

import pytest

from core.errors import LocalProtocolError
from core.zmtp.decoder import Encoded
from mdp.client.timeouts import LANES_MAX, Call, Patience, Pending
from mdp.wire.options import decode_request_options

if TYPE_CHECKING:
    from collections.abc import Mapping


def pending(timeout_s: float = 1.0, **options: Any) -> Pending:
    return Pending(Call("echo", timeout_s=timeout_s, attempts=3, **options), (b"x",))


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
        {"key": b"k" * 256},
        {"trace": {"x": "y" * 9000}},
    ],
)
def test_a_call_refuses_numbers_out_of_range(options: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"positive|deadline|key|options"):
        Call("echo", **{"timeout_s": 1.0, "attempts": 1, **options})


@pytest.mark.parametrize("wrong", [5, 0, 3.0, True, ["echo"], None])
def test_a_number_is_neither_a_service_nor_a_key(wrong: Any) -> None:
    """Octets of a number would be so many zeros, and order 17 the same key as any other of 17 zeros."""
    with pytest.raises(TypeError, match="service name"):
        Call(wrong, timeout_s=1, attempts=1)
    with pytest.raises(TypeError, match="key is"):
        Call("echo", timeout_s=1, attempts=1).with_key(wrong)


def test_a_call_without_options_has_an_empty_options_frame() -> None:
    assert Call("echo", timeout_s=1, attempts=1).prefix == b"\x01\x04echo\x01\x00"


def test_options_of_a_call_are_those_the_broker_decodes() -> None:
    call = Call("echo", timeout_s=1, attempts=5, deadline_s=3, once=True, key=b"k", wait=True, trace={"traceparent": "00-1-2-03"})
    service, octets = Encoded(call.prefix_at(1.2345) + b"\x00\x00").frames()[:2]
    options = decode_request_options(octets)
    assert (service, options.deadline_ms, options.once, options.key, options.wait) == (b"echo", 1234, True, b"k", True)
    assert options.trace == {"traceparent": "00-1-2-03"}
    assert call.attempts == 1  # at most once means sent at most once


def test_a_call_with_a_key_is_the_same_call_otherwise() -> None:
    plain = Call("echo", timeout_s=1, attempts=5, deadline_s=3, wait=True, streaming=True)
    keyed = plain.with_key("order-17")
    for name in set(Call.__slots__) - {"fields", "prefix"}:
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


def test_wake_at_is_the_earliest_due() -> None:
    patience: Patience[Pending] = Patience()
    assert patience.wake_at == inf
    slow, fast = pending(5.0), pending(1.0)
    patience.start(slow, 10.0)
    assert patience.wake_at == 15.0
    patience.start(fast, 11.0)
    assert patience.wake_at == 12.0
    assert patience.overdue(11.9) == []
    assert patience.overdue(12.0) == [fast]
    assert patience.wake_at == 15.0
    assert patience.overdue(15.0) == [slow]
    assert patience.wake_at == inf
    assert len(patience) == 0


def test_an_answered_request_leaves_nothing_behind() -> None:
    patience: Patience[Pending] = Patience()
    request = pending()
    patience.start(request, 0.0)
    del request.lane[request]
    assert len(patience) == 0
    assert patience.overdue(5.0) == []
    assert patience.wake_at == inf


def test_a_deadline_cuts_the_first_attempt_and_the_last() -> None:
    patience: Patience[Pending] = Patience()
    short = pending(2.0, deadline_s=0.5)
    longer = pending(2.0, deadline_s=3.0)
    patience.start(short, 0.0)
    patience.start(longer, 0.0)
    assert (short.due, short.give_up_at) == (0.5, 0.5)
    assert (longer.due, longer.give_up_at) == (2.0, 3.0)
    patience.renew(longer, 2.0)
    assert longer.due == 3.0


def test_renewing_moves_a_request_behind_those_that_fall_due_before() -> None:
    patience: Patience[Pending] = Patience()
    first, second = pending(), pending()
    patience.start(first, 0.0)
    patience.start(second, 0.5)
    patience.renew(first, 0.9)
    assert patience.overdue(1.5) == [second]
    assert patience.overdue(1.9) == [first]


def test_a_caller_who_computes_every_timeout_anew_does_not_get_a_lane_for_each() -> None:
    patience: Patience[Pending] = Patience()
    requests = [pending(1.0 + n / 1000) for n in range(5000)]
    for request in requests:
        patience.start(request, 0.0)
    lanes = {id(request.lane) for request in requests}
    assert len(lanes) < LANES_MAX + 40
    for request in requests:
        assert 0 <= request.due - request.call.timeout_s <= 0.1 * request.call.timeout_s


@pytest.mark.parametrize("seed", range(5))
def test_a_walk_agrees_with_looking_at_every_request(seed: int) -> None:
    chance = random.Random(seed)
    patience: Patience[Pending] = Patience()
    live: list[Pending] = []
    now = 0.0
    for _ in range(3000):
        now += chance.choice((0.0, 0.001, 0.05, 0.4))
        match chance.randrange(4):
            case 0 | 1:
                request = pending(chance.choice((0.1, 0.5, 1.0, 2.5)), deadline_s=chance.choice((None, 0.7, 4.0)))
                patience.start(request, now)
                live.append(request)
            case 2 if live:
                request = live.pop(chance.randrange(len(live)))
                if chance.random() < 0.3 and request.give_up_at > now:
                    patience.renew(request, now)
                    live.append(request)
                else:
                    del request.lane[request]
            case _:
                late = patience.overdue(now)
                assert {*map(id, late)} == {id(request) for request in live if request.due <= now}
                assert [request.due for request in late] == sorted(request.due for request in late)
                live = [request for request in live if request.due > now]
        assert patience.wake_at <= min((request.due for request in live), default=inf)
        assert len(patience) == len(live)


@pytest.mark.parametrize("options", [{}, {"deadline_s": 3}, {"wait": True}])
def test_a_key_of_any_length_is_written_as_msgpack_writes_it(options: Mapping[str, Any]) -> None:
    plain = Call("echo", timeout_s=1, attempts=5, **options)
    for size in range(1, 256):
        keyed = plain.with_key(b"k" * size).with_key(b"x" * size)  # and of a call that has one already
        assert keyed.prefix == Call("echo", timeout_s=1, attempts=5, key=b"x" * size, **options).prefix
        assert keyed.prefix_at(1.0) == Call("echo", timeout_s=1, attempts=5, key=b"x" * size, **options).prefix_at(1.0)
