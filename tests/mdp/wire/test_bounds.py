"""The last value that is taken of each field of a peer's message, and the first that is not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from bstar.machine.ballot import Ballot
from core.zmtp.limits import PeerLimits
from mdp.errors import TooLarge
from mdp.wire.channels import FRAME_BYTES, connection_of, is_channel, takes_channels, within
from mdp.wire.commands import CLIENT_PROGRESS_03, PROGRESS_BYTES_MAX, client_final, is_code, is_service_name
from mdp.wire.events import Failure, Final, Invalid, Partial, ProgressReport, Work, parse_at_broker, parse_at_client, parse_at_worker
from mdp.wire.failover import PairResponder, refusal
from mdp.wire.lending import SERVICES_MAX, VIA_MAX, decode_offer, encode_offer, via_of
from mdp.wire.options import (
    CREDIT_MAX,
    DEADLINE_MS_MAX,
    HEADERS_MAX,
    HEARTBEAT_MS_MAX,
    KEY_BYTES_MAX,
    OPTIONS_BYTES_MAX,
    OWNER_BYTES,
    USER_BYTES_MAX,
    BadOptions,
    ReadyOptions,
    RequestOptions,
    amend_options,
    checked_headers,
    decode_ready_options,
    decode_request_options,
    drop_broker_entries,
    encode_options,
)
from mdp.wire.policies import ATTEMPTS_MAX, DELAY_S_MAX, PER_S_MAX, PER_S_MIN, Rate, Retry
from mdp.wire.progress import decode_progress
from mdp.wire.shards import shard_endpoint, shard_of
from mdp.wire.size_limits import too_large
from tests.scenes.mdp_messages import client_error, client_partial

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdp.wire.commands import Dialect

ID = bytes(8)


def refused(decode: Callable[[bytes], object], field: str, value: object) -> bool:
    """Return whether a decoder refuses an entry, and says which."""
    with pytest.raises(BadOptions) as caught:
        decode(encode_options({field: value}))
    return caught.value.field == field


@pytest.mark.parametrize(
    ("field", "inside", "outside"),
    [
        ("deadline_ms", (0, DEADLINE_MS_MAX), (-1, DEADLINE_MS_MAX + 1, 1.0)),
        ("delivery", (1, 2**31 - 1), (0, 2**31)),
        ("key", (b"k", b"k" * KEY_BYTES_MAX), (b"", b"k" * (KEY_BYTES_MAX + 1), "k")),
        ("user", ("", "u" * USER_BYTES_MAX), ("u" * (USER_BYTES_MAX + 1), b"u", "é" * 128, 1)),
        ("owner", (bytes(OWNER_BYTES),), (bytes(OWNER_BYTES - 1), bytes(OWNER_BYTES + 1), b"", "o" * OWNER_BYTES, [0] * OWNER_BYTES)),
    ],
)
def test_options_of_a_request(field: str, inside: tuple[object, ...], outside: tuple[object, ...]) -> None:
    for value in inside:
        assert getattr(decode_request_options(encode_options({field: value})), field) == value
    for value in outside:
        assert refused(decode_request_options, field, value)


@pytest.mark.parametrize(
    ("field", "inside", "outside"),
    [
        ("credit", (1, CREDIT_MAX), (0, CREDIT_MAX + 1)),
        ("concurrency", (1, CREDIT_MAX), (0, CREDIT_MAX + 1)),
        ("heartbeat_ms", (1, HEARTBEAT_MS_MAX), (0, HEARTBEAT_MS_MAX + 1)),
        ("version", ("v" * 64,), ("v" * 65, b"v")),
    ],
)
def test_options_of_a_worker(field: str, inside: tuple[object, ...], outside: tuple[object, ...]) -> None:
    for value in inside:
        assert getattr(decode_ready_options(encode_options({field: value})), field) == value
    for value in outside:
        assert refused(decode_ready_options, field, value)


def test_what_is_not_said_is_what_it_was() -> None:
    assert decode_request_options(encode_options({"other": 1})) == RequestOptions(delivery=1)
    assert decode_ready_options(encode_options({"other": 1})) == ReadyOptions(credit=1)


def test_options_are_so_large_and_those_with_a_brokers_entries_a_little_larger() -> None:
    def of(octets: int) -> bytes:
        return encode_options({"other": bytes(octets - len(encode_options({"other": bytes(1000)})) + 1000)})

    assert len(of(OPTIONS_BYTES_MAX)) == OPTIONS_BYTES_MAX
    decode_request_options(of(OPTIONS_BYTES_MAX))
    decode_request_options(of(OPTIONS_BYTES_MAX + 512), amended=True)
    amend_options(of(OPTIONS_BYTES_MAX + 512), deadline_ms=1, delivery=2)
    for octets, amended in ((OPTIONS_BYTES_MAX + 1, False), (OPTIONS_BYTES_MAX + 513, True)):
        with pytest.raises(BadOptions):
            decode_request_options(of(octets), amended=amended)


def test_a_client_cannot_say_what_a_broker_says() -> None:
    octets = encode_options({"user": "u", "owner": bytes(OWNER_BYTES), "reports": True, "key": b"k", "progress": False, "other": 1})
    assert msgpack.unpackb(drop_broker_entries(octets)) == {"key": b"k", "other": 1}


def test_so_many_headers() -> None:
    headers = {str(number): "" for number in range(HEADERS_MAX)}
    assert checked_headers(headers) == headers
    with pytest.raises(ValueError):
        checked_headers({**headers, "one more": ""})


def test_rates_and_retries() -> None:
    for per_s, burst in ((PER_S_MIN, 1), (PER_S_MAX, int(PER_S_MAX))):
        assert Rate.of({"per_s": per_s, "burst": burst}) == Rate(per_s, burst)
    assert Rate.of({"per_s": 2}) == Rate(2.0, 1)
    with pytest.raises(ValueError, match=r"rate of 0\.0 requests"):
        Rate.of({})
    inside: list[dict[str, Any]] = [
        {"attempts": 2, "base_s": 0, "max_s": 0, "factor": 1, "jitter": 0},
        {"attempts": ATTEMPTS_MAX, "base_s": DELAY_S_MAX, "max_s": DELAY_S_MAX, "factor": ATTEMPTS_MAX, "jitter": 1},
    ]
    for entries in inside:
        assert Retry.of(entries) == Retry(**entries)
    assert Retry.of({}) == Retry() == Retry(attempts=3, base_s=0.1, factor=2.0, max_s=30.0, jitter=0.5)
    for wrong in ({"base_s": -0.1}, {"jitter": -0.1}, {"jitter": 1.1}, {"factor": 0.9}, {"max_s": DELAY_S_MAX + 1}):
        with pytest.raises(ValueError):
            Retry.of(wrong)


def invalid(event: object) -> bool:
    return isinstance(event, Invalid)


def test_frames_at_a_broker() -> None:
    # [frames, whether one frame less is too little]
    for frames in (
        [b"", b"MDPC01", b"echo", b"body"],
        [b"MDPC02", b"\x01", b"echo", b"body"],
        [b"", b"MDPW01", b"\x03", b"address", b"", b"body"],
        [b"MDPW02", b"\x04", b"address", b"", b"body"],
    ):
        assert not invalid(parse_at_broker(frames))
        assert all(invalid(parse_at_broker(frames[:size])) for size in range(len(frames)))
    assert parse_at_broker([b""]) == Invalid("frames")
    assert parse_at_broker([b"", b"MDPC01"]) == Invalid("frames", "client", "0.1")
    assert parse_at_broker([b"", b"MDPX01"]) == Invalid("header")
    assert parse_at_broker([b"MDPC02"]) == Invalid("frames", "client", "0.2")
    assert parse_at_broker([b"MDPC02", b"\x07"]) == Invalid("command", "client", "0.2")


def test_frames_at_a_client() -> None:
    assert parse_at_client([b"MDPC02", b"\x03", b"echo", b"body"]) == Final("0.2", b"", b"echo", [b"body"])
    assert parse_at_client([b"MDPC02", b"\x03", b"echo"]) == Invalid("frames", "client", "0.2")
    assert parse_at_client([b"", b"MDPC01", b"echo"]) == Invalid("frames", "client", "0.1")
    assert parse_at_client([b"", b"MDPX01"]) == Invalid("header")
    assert parse_at_client([b""]) == Invalid("frames", "client", "0.1")
    assert parse_at_client([]) == Invalid("frames")
    assert parse_at_client([b"x"]) == Invalid("header")


def test_frames_at_a_worker() -> None:
    assert parse_at_worker([b"", b"MDPW01", b"\x02", b"a", b"", b"x"]) == Work("0.1", b"a", [b"x"])
    assert parse_at_worker([b"", b"MDPW01", b"\x02", b"a", b""]) == Invalid("frames", "worker", "0.1")
    assert parse_at_worker([b"MDPW03\x02" + ID, b"", b"x"]) == Work("0.3", ID, [b"x"], b"")
    assert parse_at_worker([b"MDPW03\x02" + ID, b""]) == Invalid("frames", "worker", "0.3", ID)
    assert parse_at_worker([b""]) == Invalid("frames")
    assert parse_at_worker([b"", b"MDPW01"]) == Invalid("frames", "worker", "0.1")
    assert parse_at_worker([b"", b"MDPX01"]) == Invalid("header")
    assert parse_at_worker([b"MDPW02"]) == Invalid("frames", "worker", "0.2")


def test_codes_and_reports() -> None:
    longest = "C" * 32
    assert parse_at_client(client_error(ID, longest, "why")) == Failure(ID, longest, "why")
    assert parse_at_client(client_error(ID, "C", "")) == Failure(ID, "C", "")
    assert invalid(parse_at_client(client_error(ID, longest + "C", "why")))
    assert invalid(parse_at_client(client_error(ID, "", "why")))
    assert [is_code(code) for code in ("C", longest, "A_B")] == [True] * 3
    assert [is_code(code) for code in ("", longest + "C", "code", "A-B")] == [False] * 4
    report = bytes(PROGRESS_BYTES_MAX)
    assert parse_at_client([CLIENT_PROGRESS_03 + ID, report]) == ProgressReport(ID, report)
    assert parse_at_client([CLIENT_PROGRESS_03 + ID, report + b"x"]) == Invalid("frames", "client", "0.3", ID)
    empty = len(msgpack.packb({"other": bytes(1000)})) - 1000
    assert decode_progress(msgpack.packb({"other": bytes(PROGRESS_BYTES_MAX - empty)})) is not None
    assert decode_progress(msgpack.packb({"other": bytes(PROGRESS_BYTES_MAX - empty + 1)})) is None
    assert decode_progress(b"\xc0") is None


def test_messages_to_clients() -> None:
    older: tuple[Dialect, ...] = ("0.1", "0.2")
    for dialect in older:
        assert parse_at_client(client_final(dialect, b"echo", ID, [b"x"])) == Final(dialect, b"", b"echo", [b"x"])
    assert parse_at_client(client_final("0.3", b"echo", ID, [b"x"])) == Final("0.3", ID, b"", [b"x"])
    assert parse_at_client(client_partial("0.3", b"echo", ID, [b"x"])) == Partial("0.3", ID, b"", [b"x"])
    assert parse_at_client(client_partial("0.2", b"echo", ID, [b"x"])) == Partial("0.2", b"", b"echo", [b"x"])
    assert [is_service_name(name) for name in (b"", b"s" * 255, b"s" * 256, b"\xff", b"a\n")] == [False, True, False, False, False]


def test_channels() -> None:
    assert takes_channels({b"x-mdp-channels": b"1"})
    assert not takes_channels({b"x-mdp-channels": b"2"})
    assert not takes_channels({})
    assert (is_channel(bytes(6)), is_channel(bytes(5)), is_channel(b"\1" + bytes(6))) == (True, False, False)
    assert (connection_of(bytes(5) + b"id"), connection_of(b"\1abcdef")) == (b"id", b"\1abcdef")
    assert within(PeerLimits(1, 1, 9)) == within(PeerLimits(2, 1 + FRAME_BYTES, 9)) == PeerLimits(1, 1, 9)
    assert within(PeerLimits(3, 2 + FRAME_BYTES, 9)) == PeerLimits(2, 2, 9)


def test_pairs() -> None:
    assert [refusal(Ballot(0, 0), retry_s)[2] for retry_s in (0.0, 0.001, 0.0026)] == [b"1", b"1", b"3"]
    ours = PairResponder(Ballot(4, 1))
    assert ours.answer(b"4.0000000000000001") == ours.greeting
    assert ours.claimed == []
    assert ours.answer(b"4.0000000000000002")[0] == b"300"
    assert ours.claimed == [(b"", Ballot(4, 2))]


def test_offers_of_lenders() -> None:
    entry = 4 + 8
    capacities = [(b"%04d" % number, number) for number in range(SERVICES_MAX + 1)]
    for limit, count in ((0, 0), (entry - 1, 0), (entry, 1), (10 * entry, 10), (10 * entry + entry - 1, 10), (10**9, SERVICES_MAX)):
        offer = msgpack.unpackb(encode_offer(b"me", capacities, limit)[1], raw=True)
        assert len(offer) == count
    assert len(msgpack.unpackb(encode_offer(b"me", [(b"a" * 99, 1), (b"b", 1)], 20)[1])) == 0, "in their order, up to the first too many"
    offer = bytes(msgpack.packb({b"s": 1}))
    assert decode_offer([b"200", b"n" * 255, offer]) == (b"n" * 255, {b"s": 1})
    assert decode_offer([b"200", b"n" * 256, offer]) is None
    wrong_offers: tuple[object, ...] = ({b"s": []}, {b"s": {}}, {b"s": -1}, {"": 1}, [1])
    for wrong in wrong_offers:
        assert decode_offer([b"200", b"n", bytes(msgpack.packb(wrong))]) is None
    via = [b"n"] * VIA_MAX
    assert via_of(msgpack.packb({"via": via})) == tuple(via)
    assert via_of(msgpack.packb({"via": [*via, b"n"]})) is None


def test_shards() -> None:
    assert [shard_endpoint(f"tcp://h:{port}", 2) for port in (1, 65_532, 65_533, 0)] == ["tcp://h:4", "tcp://h:65535", None, None]
    assert [shard_of(b"s%d" % number, 3) for number in range(12)] == [1, 0, 2, 2, 2, 1, 1, 2, 0, 0, 0, 2]


def test_a_size_beyond_a_peers_limit_is_that_of_the_body() -> None:
    assert too_large("request", [bytes(10**6)], None, 3, 100) is None
    limits = PeerLimits(4, 200, 150)
    assert too_large("request", [b"x"], limits, 3, 100) is None
    frames = too_large("request", [b"x", b"y"], limits, 3, 100)
    whole = too_large("reply", [bytes(101)], limits, 3, 100, service="echo")
    frame = too_large("reply", [bytes(151)], PeerLimits(4, 2000, 150), 3, 100)
    assert [(one.what, one.size, one.limit) for one in (frames, whole, frame) if one is not None] == [
        ("frames of the request", 2, 1),
        ("bytes of the reply", 101, 100),
        ("bytes of a frame of the reply", 151, 150),
    ]
    envelope = too_large("request", [b"x"], PeerLimits(2, 50, 150), 3, 100)
    assert envelope is not None
    assert envelope.limit == 0
    most = 10**18 - 1
    for size, read in ((most, most), (most + 1, 0)):
        rebuilt = TooLarge.rebuilt("echo", 1, 0.0, f"bytes: {size}, at most 1", "TOO_LARGE")
        assert isinstance(rebuilt, TooLarge)
        assert rebuilt.size == read
