"""core.address: what is an endpoint, to the last character."""

from __future__ import annotations

import pytest

from core.address import endpoint_text, endpoints_to_connect, parse_bind, parse_connect, source_of
from core.errors import InvalidEndpoint

LONGEST_NAME = ".".join(["a" * 60] * 4) + ".abcdefghi"


def test_endpoints_are_one_or_several_in_text_or_bytes() -> None:
    one, other = "tcp://here:1", "ipc://there"
    assert endpoints_to_connect(one) == endpoints_to_connect(one.encode()) == [one]
    assert endpoints_to_connect([one, other.encode()]) == endpoints_to_connect(iter((one, other))) == [one, other]
    assert endpoint_text(b"ipc://\xff") == "ipc://\\xff"
    for wrong in (5, None, [one, 5], ["tcp://here"], "there"):
        with pytest.raises(InvalidEndpoint):
            endpoints_to_connect(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["here:65535", "[::1]:1", "*:5555", f"{LONGEST_NAME}:5"])
def test_places_that_are_bound_or_connected_to(place: str) -> None:
    assert parse_bind(f"tcp://{place}", ipv6=True).endpoint == f"tcp://{place}"
    if place.startswith("*"):
        with pytest.raises(InvalidEndpoint):
            parse_connect(f"tcp://{place}")
    else:
        assert parse_connect(f"tcp://{place}").endpoint == f"tcp://{place}"


@pytest.mark.parametrize(
    "place", ["here", "here:65536", "here:0x1", "here:", "[here]:1", "[::1:1", "::1]:1", "[1.2.3.4]:1", f"{LONGEST_NAME}a:5"]
)
def test_places_that_are_none(place: str) -> None:
    for parse in (lambda text: parse_bind(text, ipv6=True), parse_connect):
        with pytest.raises(InvalidEndpoint):
            parse(f"tcp://{place}")


def test_why_an_endpoint_cannot_be_bound() -> None:
    for place, why in (("here", "has no port"), ("[::1]:1", "IPv6 needs the option ipv6"), ("[here]:1", "no such local address")):
        with pytest.raises(InvalidEndpoint, match=why):
            parse_bind(f"tcp://{place}")
    with pytest.raises(InvalidEndpoint, match="has no port"):
        parse_connect("tcp://here")


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:0db8:0001:0002::/64"),
        ("ipc://a:b", "ipc://a:b"),
        ("uid 7: a", "uid 7: a"),
    ],
)
def test_peers_are_counted_by_address_or_network(address: str, source: str) -> None:
    assert source_of(address) == source
