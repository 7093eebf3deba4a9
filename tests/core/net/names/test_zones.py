"""core.net.names.zones: link-local addresses, with their interface as a name and as a number."""

from __future__ import annotations

import errno
import socket

import pytest

import core
from core.net.names.zones import host_of, socket_address

INDEX, LOOPBACK = next((index, name) for index, name in socket.if_nameindex() if name.startswith("lo"))


@pytest.mark.parametrize("zone", [LOOPBACK, str(INDEX)])
def test_a_zone_becomes_the_number_of_its_interface(zone: str) -> None:
    assert socket_address(f"fe80::1%{zone}", 5555) == ("fe80::1", 5555, 0, INDEX)


@pytest.mark.parametrize("host", ["::1", "127.0.0.1", "0.0.0.0"])
def test_an_address_without_a_zone_stays_as_it_is(host: str) -> None:
    assert socket_address(host, 5555) == (host, 5555)


@pytest.mark.parametrize("zone", ["", "no-such-if0", "9" * 30, "²", "a\0b", "-1"])
def test_an_interface_that_is_not_there_is_named(zone: str) -> None:
    with pytest.raises(OSError, match="there is no interface") as refused:
        socket_address(f"fe80::1%{zone}", 5555)
    assert refused.value.errno == errno.ENODEV


@pytest.mark.parametrize(
    ("name", "host"),
    [
        (("fe80::1", 5555, 0, INDEX), f"fe80::1%{LOOPBACK}"),
        (("fe80::1", 5555, 0, 999_999), "fe80::1%999999"),
        ((f"fe80::1%{LOOPBACK}", 5555, 0, INDEX), f"fe80::1%{LOOPBACK}"),
        (("::1", 5555, 0, 0), "::1"),
        (("127.0.0.1", 5555), "127.0.0.1"),
    ],
)
def test_the_host_of_a_socket_has_its_zone(name: tuple[object, ...], host: str) -> None:
    assert host_of(name) == host


async def test_a_bind_gives_the_zone_to_the_system() -> None:
    """The system says that the loopback interface has no such address.

    Without the number of the interface, it says that the argument is invalid.
    """
    async with core.Context() as context, context.socket(core.REP, ipv6=True) as socket_:
        with pytest.raises(core.ZMQError) as refused:
            socket_.bind(f"tcp://[fe80::1%{LOOPBACK}]:*")
        assert refused.value.errno == errno.EADDRNOTAVAIL
        with pytest.raises(core.ZMQError, match="there is no interface 'no-such-if0'") as refused:
            socket_.bind("tcp://[fe80::1%no-such-if0]:*")
        assert refused.value.errno == errno.ENODEV
