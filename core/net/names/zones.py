"""Zones of IPv6 addresses, as in `tcp://[fe80::1%eth0]:5555`: the interface of a link-local address.

A socket takes and tells them as numbers beside the address, endpoints as names within it (RFC 4007 §11).
"""

from __future__ import annotations

import socket
from errno import ENODEV
from typing import Any, Final

_ZONE_DIGITS_MAX: Final = 9  # the number of an interface has 32 bits


def socket_address(host: str, port: int) -> tuple[Any, ...]:
    """Return the address a socket binds to, with the number of its zone; raises OSError: there is no such interface."""
    address, percent, zone = host.partition("%")
    if not percent:
        return host, port
    if zone.isdecimal() and zone.isascii() and len(zone) <= _ZONE_DIGITS_MAX:
        return address, port, 0, int(zone)
    try:
        return address, port, 0, socket.if_nametoindex(zone)
    except (OSError, ValueError) as error:  # ValueError: it has a null character
        raise OSError(ENODEV, f"there is no interface {zone!r}") from error


def host_of(name: tuple[Any, ...]) -> str:
    """Return the host of the address of a socket, with its zone."""
    host, zone = str(name[0]), name[3] if len(name) > 3 else 0
    if not zone or "%" in host:
        return host
    try:
        return f"{host}%{socket.if_indextoname(zone)}"
    except OSError:  # it has gone
        return f"{host}%{zone}"
