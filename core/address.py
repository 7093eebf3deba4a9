"""Parses endpoint text, `scheme://address`, to a record for the listener or connector (TRN-01 to 05, 10).

Nothing is resolved here: host and interface names are resolved when listening begins or at each connect attempt (OPT-05). `name://`
is passed to the resolver of the context.

    bind      tcp://HOST:PORT   HOST `*`, IPv4, IPv6 or [IPv6], interface or host name; PORT decimal, `*` or 0 for any free one
              ipc://PATH        relative or absolute, `@NAME` abstract (Linux), `*` a fresh temporary path
              inproc://NAME
    connect   tcp://HOST:PORT   or tcp://SOURCE[:PORT];HOST:PORT to choose the local side
              ipc://PATH        inproc://NAME        name://NAME

Where this is stricter than libzmq (ports above 65535, port 0 or an empty host to connect to, `ipc://*` to connect to, host
names no resolver accepts) the call fails at once with EINVAL, instead of a connection that can never succeed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final

from core.errors import ENAMETOOLONG, ENOCOMPATPROTO, ENODEV, EPROTONOSUPPORT, InvalidEndpoint

IPC_PATH_OCTETS_MAX: Final = 107  # sun_path holds 108 with its NUL
HOST_NAME_OCTETS_MAX: Final = 253  # RFC 1035, without the root's dot
PORT_MAX: Final = 65535
NETWORK_BITS: Final = 64  # of an IPv6 address: a host may have a network of so many bits, and connect from each of its addresses

# A label has 1 to 63 bytes: Python's resolver raises UnicodeError for others, so they are refused before.
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,62})(?:\.[A-Za-z0-9_-]{1,63})*\.?", re.ASCII)


class HostKind(Enum):
    """Kind of the host in a tcp endpoint."""

    ANY = "every local address"
    IPV4 = "IPv4 literal"
    IPV6 = "IPv6 literal"
    NAME = "interface or host name, not resolved"


@dataclass(frozen=True, slots=True)
class TcpBind:
    """Listen on tcp. `host` has no brackets; `port` 0 means any free one."""

    endpoint: str
    host: str
    kind: HostKind
    port: int


@dataclass(frozen=True, slots=True)
class TcpSource:
    """Local side of a connection; `port` 0 leaves the choice to the system."""

    host: str
    kind: HostKind
    port: int


@dataclass(frozen=True, slots=True)
class TcpConnect:
    """Connect by tcp, from `source` if there is one."""

    endpoint: str
    host: str
    kind: HostKind
    port: int
    source: TcpSource | None = None


@dataclass(frozen=True, slots=True)
class IpcBind:
    """Listen on a Unix socket."""

    endpoint: str
    address: str  # for the system call: a path, or NUL and the abstract name; empty when `wildcard`
    wildcard: bool = False  # make a new temporary directory and listen in it

    @property
    def abstract(self) -> bool:
        return self.address.startswith("\0")


@dataclass(frozen=True, slots=True)
class IpcConnect:
    """Connect to a Unix socket; `address` as in `IpcBind`."""

    endpoint: str
    address: str


@dataclass(frozen=True, slots=True)
class InprocBind:
    """Bind a name within the context."""

    endpoint: str
    name: str


@dataclass(frozen=True, slots=True)
class InprocConnect:
    """Connect to a name within the context."""

    endpoint: str
    name: str


@dataclass(frozen=True, slots=True)
class NameConnect:
    """Resolve a name with the context's resolver, at each connect attempt."""

    endpoint: str
    name: str


Bind = TcpBind | IpcBind | InprocBind
Connect = TcpConnect | IpcConnect | InprocConnect | NameConnect


def parse_bind(endpoint: str, *, ipv6: bool = False) -> Bind:
    """Parse an endpoint to listen on; raises InvalidEndpoint (TRN-01, 02, 05, 10). Without `ipv6` an IPv6 literal is ENODEV."""
    scheme, address = _split_scheme(endpoint)
    if scheme == "tcp":
        return _tcp_bind(endpoint, address, ipv6)
    if scheme == "ipc":
        if address == "*":
            return IpcBind(endpoint, "", wildcard=True)
        return IpcBind(endpoint, _ipc_address(endpoint, address))
    if scheme == "inproc":
        return InprocBind(endpoint, address)
    raise _unknown_scheme(endpoint, scheme)


def parse_connect(endpoint: str) -> Connect:
    """Parse an endpoint to connect to; raises InvalidEndpoint (TRN-01, 04, 05, 10)."""
    scheme, address = _split_scheme(endpoint)
    if scheme == "tcp":
        return _tcp_connect(endpoint, address)
    if scheme == "ipc":
        if address == "*":
            raise InvalidEndpoint(f"{endpoint!r}: a wildcard can be bound, not connected to", endpoint=endpoint)
        return IpcConnect(endpoint, _ipc_address(endpoint, address))
    if scheme == "inproc":
        return InprocConnect(endpoint, address)
    if scheme == "name":
        return NameConnect(endpoint, address)
    raise _unknown_scheme(endpoint, scheme)


def endpoints_to_connect(given: str | bytes | Iterable[str | bytes]) -> list[str]:
    """Return the endpoints that a client or worker was given, one or several, as text.

    Raises InvalidEndpoint as `parse_connect` does, and for what is no text.
    """
    several = [given] if isinstance(given, str | bytes) or not isinstance(given, Iterable) else [*given]
    endpoints = [endpoint_text(endpoint) for endpoint in several]
    for endpoint in endpoints:
        parse_connect(endpoint)
    return endpoints


def endpoint_text(endpoint: object) -> str:
    """Return an endpoint as text; LAST_ENDPOINT is bytes, as in libzmq.

    Raises InvalidEndpoint when it is neither.
    """
    if isinstance(endpoint, str):
        return endpoint
    if isinstance(endpoint, bytes):
        return endpoint.decode("utf-8", "backslashreplace")
    raise InvalidEndpoint(f"{endpoint!r} is no endpoint, which is text: scheme://address", endpoint=repr(endpoint))


def parse_proxy(text: str) -> TcpConnect:
    """Parse the `HOST:PORT` of a proxy; raises InvalidEndpoint."""
    if ";" not in text:
        with suppress(InvalidEndpoint):
            return _tcp_connect(f"tcp://{text}", text)
    raise InvalidEndpoint(f"socks_proxy {text!r} is not HOST:PORT", endpoint=f"tcp://{text}")


def tcp_endpoint(host: str, port: int) -> str:
    """Return the endpoint text of a numeric address, IPv6 in brackets (TRN-03)."""
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _split_scheme(endpoint: str) -> tuple[str, str]:
    scheme, separator, address = endpoint.partition("://")
    if not separator or not scheme or not address:
        raise InvalidEndpoint(f"{endpoint!r} is not scheme://address", endpoint=endpoint)
    return scheme, address


def _unknown_scheme(endpoint: str, scheme: str) -> InvalidEndpoint:
    if scheme == "udp":  # ZeroMQ has it for socket types that do not exist here
        return InvalidEndpoint(ENOCOMPATPROTO, f"{endpoint!r}: no socket type here goes over udp", endpoint=endpoint)
    return InvalidEndpoint(EPROTONOSUPPORT, f"{endpoint!r}: no transport {scheme!r}", endpoint=endpoint)


def _tcp_bind(endpoint: str, address: str, ipv6: bool) -> TcpBind:
    host_text, separator, port_text = address.rpartition(":")
    if not separator:
        raise InvalidEndpoint(f"{endpoint!r} has no port", endpoint=endpoint)
    port = 0 if port_text in ("*", "0") else _port(endpoint, port_text)
    found = _host(host_text)
    if found is None or (found[1] is HostKind.IPV6 and not ipv6):
        reason = "no such local address" if found is None else "IPv6 needs the option ipv6"
        raise InvalidEndpoint(ENODEV, f"{endpoint!r}: {reason}", endpoint=endpoint)
    return TcpBind(endpoint, *found, port)


def _tcp_connect(endpoint: str, address: str) -> TcpConnect:
    source_text, separator, target = address.partition(";")
    if not separator:
        target = address
    host_text, colon, port_text = target.rpartition(":")
    if not colon:
        raise InvalidEndpoint(f"{endpoint!r} has no port", endpoint=endpoint)
    port = _port(endpoint, port_text)
    found = _host(host_text)
    if found is None or found[1] is HostKind.ANY:
        raise InvalidEndpoint(f"{endpoint!r}: {host_text!r} is not a host to connect to", endpoint=endpoint)
    return TcpConnect(endpoint, *found, port, _source(endpoint, source_text) if separator else None)


def _source(endpoint: str, text: str) -> TcpSource:
    """Parse `host`, `host:port` or a bare IPv6 literal; no port or 0 means any."""
    found, port = _host(text), 0
    if found is None:
        host_text, _, port_text = text.rpartition(":")
        found = _host(host_text)
        port = 0 if port_text == "0" else _port(endpoint, port_text)
    if found is None or found[1] is HostKind.ANY:
        raise InvalidEndpoint(f"{endpoint!r}: {text!r} is not a local address to connect from", endpoint=endpoint)
    return TcpSource(*found, port)


def _port(endpoint: str, text: str) -> int:
    # The length first: int() of a very long text is itself an error. libzmq wraps numbers above 65535; TRN-05 does not.
    if text.isascii() and text.isdigit() and len(text) <= len(str(PORT_MAX)) and 0 < int(text) <= PORT_MAX:
        return int(text)
    raise InvalidEndpoint(f"{endpoint!r}: port {text!r} is not a number from 1 to {PORT_MAX}", endpoint=endpoint)


def _host(text: str) -> tuple[str, HostKind] | None:
    bracketed = text.startswith("[") and text.endswith("]")
    if bracketed:
        text = text[1:-1]
    if text == "*":
        return text, HostKind.ANY
    if ":" in text:
        return (text, HostKind.IPV6) if _is(IPv6Address, text) else None
    if bracketed:
        return None
    if _is(IPv4Address, text):
        return text, HostKind.IPV4
    if len(text) <= HOST_NAME_OCTETS_MAX and _HOST_NAME.fullmatch(text):
        return text, HostKind.NAME
    return None


def source_of(address: str) -> str:
    """Return what is counted of peers: an address, or its network for IPv6 that is not IPv4 within it."""
    if ":" not in address:
        return address
    try:
        parsed = IPv6Address(address)
    except AddressValueError:  # of a process, for ipc
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return f"{parsed.packed[: NETWORK_BITS // 8].hex(':', 2)}::/{NETWORK_BITS}"


def _is(kind: type[IPv4Address | IPv6Address], text: str) -> bool:
    try:
        kind(text)  # IPv6Address takes a zone: fe80::1%eth0
    except AddressValueError:
        return False
    return True


def _ipc_address(endpoint: str, path: str) -> str:
    if path == "@" or "\0" in path:
        raise InvalidEndpoint(f"{endpoint!r} names no file and no abstract socket", endpoint=endpoint)
    try:
        octets = len(path.encode("utf-8", "surrogateescape"))  # as Python encodes file names
    except UnicodeEncodeError:
        raise InvalidEndpoint(f"{endpoint!r} is not a file name on this system", endpoint=endpoint) from None
    if octets > IPC_PATH_OCTETS_MAX:
        raise InvalidEndpoint(
            ENAMETOOLONG,
            f"path of {octets} bytes in {endpoint!r}, at most {IPC_PATH_OCTETS_MAX} are possible; choose a shorter one",
            endpoint=endpoint,
        )
    return "\0" + path[1:] if path.startswith("@") else path
