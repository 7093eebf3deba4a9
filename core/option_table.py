"""The socket options: one table row each.

A row says everything about an option: name, number, type, default, range, unit, when a change takes effect, and the rule or
reason behind it. Defaults that differ from libzmq's are marked in the row and listed in `specs/sockets.md`.

Actions (SUBSCRIBE, UNSUBSCRIBE) and what only a live socket knows (RCVMORE, FD, EVENTS, TYPE, LAST_ENDPOINT, THREAD_SAFE)
are not values and not here. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from core import constants as c
from core.errors import InvalidOption

OptionValue = int | bytes

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
KIB: Final = 1024
MIB: Final = 1024 * 1024
KEY_OCTETS: Final = 32
KEY_CHARACTERS: Final = 40  # the same key in Z85


class Kind(Enum):
    """Type of a value; the range of a row counts bytes, except for INT and BOOL."""

    INT = "int"
    BOOL = "0 or 1"
    BYTES = "bytes"
    IDENTITY = "routing id"  # bytes that do not start with 00, which marks generated ids (ZMTP-44)
    PROPERTY = "X-Name:value"  # empty, or a property of the handshake; names that begin with X- belong to applications
    KEY = "key"  # 32 bytes, or their 40 Z85 characters, which are decoded (CURVE-17)


class Acts(Enum):
    """When a change takes effect (SOCK-07)."""

    ALWAYS = "always"
    BEFORE_ENDPOINTS = "later binds and connects"


@dataclass(frozen=True, slots=True, kw_only=True)
class OptionRow:
    """One option."""

    name: str  # attribute name: ZeroMQ's in lower case
    number: int | None  # id for `setsockopt`; None for limits that libzmq does not have
    kind: Kind  # type of the value
    default: OptionValue  # value of a new socket
    low: int  # least value, or least length in bytes
    high: int  # greatest value, or greatest length in bytes
    unit: str = ""  # of the value; empty for switches and texts
    acts: Acts = Acts.BEFORE_ENDPOINTS  # when a change takes effect
    why: str = ""  # rule ids, or the reason for the default
    libzmq_default: OptionValue | None = None  # libzmq's default where ours differs


def _named(number: int, kind: Kind, default: OptionValue, low: int, high: int, **more: Any) -> OptionRow:
    name = c.SocketOption(number).name.lower()
    return OptionRow(name=name, number=int(number), kind=kind, default=default, low=low, high=high, **more)


def _number(number: int, default: int, low: int, high: int = INT32_MAX, *, unit: str, why: str, **more: Any) -> OptionRow:
    return _named(number, Kind.INT, default, low, high, unit=unit, why=why, **more)


def _switch(number: int, why: str, acts: Acts = Acts.BEFORE_ENDPOINTS) -> OptionRow:
    return _named(number, Kind.BOOL, 0, 0, 1, why=why, acts=acts)


def _octets(number: int, low: int, high: int, why: str, *, kind: Kind = Kind.BYTES, acts: Acts = Acts.BEFORE_ENDPOINTS) -> OptionRow:
    return _named(number, kind, b"", low, high, unit="bytes", why=why, acts=acts)


def _limit(name: str, default: int, low: int, high: int = INT64_MAX, *, unit: str, why: str, **more: Any) -> OptionRow:
    return OptionRow(name=name, number=None, kind=Kind.INT, default=default, low=low, high=high, unit=unit, why=why, **more)


# A long row is two lines: what the option is, and why.
# fmt: off
_QUEUES = (
    _number(c.SNDHWM, 1000, 0, unit="messages per peer, 0 = no limit", why="SOCK-05", acts=Acts.ALWAYS),
    _number(c.RCVHWM, 1000, 0, unit="messages per peer, 0 = no limit", why="SOCK-05", acts=Acts.ALWAYS),
    _number(c.SNDTIMEO, -1, -1, unit="ms, -1 = no limit", why="SOCK-13", acts=Acts.ALWAYS),
    _number(c.RCVTIMEO, -1, -1, unit="ms, -1 = no limit", why="SOCK-13", acts=Acts.ALWAYS),
    _number(c.LINGER, 5000, -1, unit="ms, -1 = no limit", acts=Acts.ALWAYS, libzmq_default=-1,
            why="SOCK-15; without limit an absent peer keeps a program from exiting"),
    _switch(c.IMMEDIATE, "OPT-01"),
    _switch(c.CONFLATE, "OPT-02"),
)

_CONNECTIONS = (
    _number(c.RECONNECT_IVL, 100, -1, unit="ms, -1 = never reconnect", why="OPT-03"),
    _number(c.RECONNECT_IVL_MAX, 0, 0, unit="ms, 0 = no doubling", why="OPT-04"),
    _number(c.RECONNECT_STOP, 0, 0, 7, unit="ReconnectStop flags", why="OPT-07"),
    _octets(c.SOCKS_PROXY, 0, 300, "OPT-08; HOST:PORT, empty = none"),
    _octets(c.SOCKS_USERNAME, 0, 255, "OPT-08"),
    _octets(c.SOCKS_PASSWORD, 0, 255, "OPT-08"),
    _number(c.HANDSHAKE_IVL, 5000, 0, unit="ms, 0 = no limit", libzmq_default=30000,
            why="ZMTP-11; a silent peer occupies a pending handshake for at most this long"),
    _number(c.HEARTBEAT_IVL, 0, 0, unit="ms, 0 = off", why="1.6"),
    _number(c.HEARTBEAT_TTL, 0, 0, 6_553_599, unit="ms, sent to the peer in tenths of a second", why="1.6"),
    _number(c.HEARTBEAT_TIMEOUT, -1, -1, unit="ms, -1 = HEARTBEAT_IVL", why="1.6"),
    _number(c.CONNECT_TIMEOUT, 0, 0, unit="ms, 0 = the system's", why="5.9"),
    _limit("refused_ivl", 0, 0, unit="ms, 0 = never connect again",
           why="ZMTP-47, 48: a peer refuses our credentials or mechanism again, until its configuration is changed"),
    _number(c.BACKLOG, 100, 0, unit="connections", why="passed to listen()"),
    _switch(c.IPV6, "TRN-02"),
    _number(c.SNDBUF, -1, -1, unit="bytes of kernel buffer, -1 = the system's", why="SO_SNDBUF"),
    _number(c.RCVBUF, -1, -1, unit="bytes of kernel buffer, -1 = the system's", why="SO_RCVBUF"),
    _number(c.TOS, 0, 0, 255, unit="IP type of service byte", why="IP_TOS, and IPV6_TCLASS for IPv6"),
    _number(c.TCP_KEEPALIVE, -1, -1, 1, unit="-1 = the system's", why="SO_KEEPALIVE"),
    _number(c.TCP_KEEPALIVE_IDLE, -1, -1, unit="s, -1 = the system's", why="TCP_KEEPIDLE"),
    _number(c.TCP_KEEPALIVE_CNT, -1, -1, unit="probes, -1 = the system's", why="TCP_KEEPCNT"),
    _number(c.TCP_KEEPALIVE_INTVL, -1, -1, unit="s, -1 = the system's", why="TCP_KEEPINTVL"),
    _number(c.TCP_MAXRT, 0, 0, unit="ms, 0 = the system's", why="TCP_USER_TIMEOUT"),
    _octets(c.BINDTODEVICE, 0, 15, "SO_BINDTODEVICE"),
)

_PATTERNS = (
    _octets(c.ROUTING_ID, 1, 255, "RTR-03, ZMTP-44", kind=Kind.IDENTITY),
    _octets(c.CONNECT_ROUTING_ID, 1, 255, "RTR-10; used up by one connect", kind=Kind.IDENTITY, acts=Acts.ALWAYS),
    _switch(c.ROUTER_MANDATORY, "RTR-06", Acts.ALWAYS),
    _switch(c.ROUTER_HANDOVER, "RTR-07, RTR-08", Acts.ALWAYS),
    _switch(c.PROBE_ROUTER, "DLR-03, RTR-14"),
    _octets(c.HELLO_MSG, 0, INT32_MAX, "OPT-09"),
    _octets(c.METADATA, 0, 4 * KIB, "OPT-10; X-Name:value", kind=Kind.PROPERTY),
    _switch(c.REQ_CORRELATE, "REQ-08", Acts.ALWAYS),
    _switch(c.REQ_RELAXED, "REQ-09", Acts.ALWAYS),
    _switch(c.XPUB_VERBOSE, "PSB-05", Acts.ALWAYS),
    _switch(c.XPUB_VERBOSER, "PSB-05", Acts.ALWAYS),
    _switch(c.XPUB_NODROP, "PSB-03", Acts.ALWAYS),
    _switch(c.XPUB_MANUAL, "PSB-11", Acts.ALWAYS),
    _octets(c.XPUB_WELCOME_MSG, 0, INT32_MAX, "PSB-12"),
    _switch(c.INVERT_MATCHING, "PSB-13", Acts.ALWAYS),
)

_SECURITY = (
    _switch(c.PLAIN_SERVER, "PLAIN-01"),
    _octets(c.PLAIN_USERNAME, 0, 255, "PLAIN-10"),
    _octets(c.PLAIN_PASSWORD, 0, 255, "PLAIN-10"),
    _switch(c.CURVE_SERVER, "CURVE-17"),
    _octets(c.CURVE_PUBLICKEY, KEY_OCTETS, KEY_CHARACTERS, "CURVE-17", kind=Kind.KEY),
    _octets(c.CURVE_SECRETKEY, KEY_OCTETS, KEY_CHARACTERS, "CURVE-17", kind=Kind.KEY),
    _octets(c.CURVE_SERVERKEY, KEY_OCTETS, KEY_CHARACTERS, "CURVE-17", kind=Kind.KEY),
    _octets(c.ZAP_DOMAIN, 0, 255, "ZAP-06, ZAP-07"),
    _switch(c.ZAP_ENFORCE_DOMAIN, "CURVE-15, ZAP-06"),
)

_LIMITS = (
    _number(c.MAXMSGSIZE, -1, -1, INT64_MAX, unit="bytes per frame, -1 = only max_message_bytes", why="ZMTP-72, 73"),
    _limit("max_message_bytes", 64 * MIB, 1, unit="bytes per received message, all frames",
           why="a 16 MiB body with its envelope fits four times; a peer must not choose how much memory is used"),
    _limit("max_partial_bytes", 1024 * MIB, 1, unit="bytes of incomplete messages, from all peers of a context",
           why="sixteen of the largest messages; a peer beyond it is disconnected, or a hundred peers could fill the memory with one each"),
    _limit("max_ahead_bytes", 64 * MIB, 0, unit="bytes read beyond the high-water mark, from all peers of a context, 0 = none",
           why="ZMTP-59: PINGs and the end of a connection are behind unread messages; eight peers with the 8 MiB a peer may have"),
    _limit("max_parts", 1024, 1, unit="frames per received message",
           why="an empty frame costs about sixty bytes; 1,024 is 16 times what any pattern here needs"),
    _limit("tell_limits", -1, -1, 1, unit="1 = announce to every peer, 0 = to none, -1 = where a limit is not the default",
           why="a peer that knows `max_parts`, `max_message_bytes` and `maxmsgsize` refuses messages that would end the connection"),
    _limit("sndhwm_bytes", 64 * MIB, 0, unit="bytes per peer, 0 = no limit", acts=Acts.ALWAYS,
           why="1,000 messages of 16 MiB are 16 GiB: count bytes too; one message always fits an empty queue"),
    _limit("rcvhwm_bytes", 64 * MIB, 0, unit="bytes per peer, 0 = no limit", why="as sndhwm_bytes", acts=Acts.ALWAYS),
    _limit("max_metadata_bytes", 8 * KIB, 0, unit="bytes of one READY or INITIATE metadata block",
           why="real peers send under 400; 8 KiB is what HTTP servers allow a header"),
    _limit("max_handshake_bytes", 64 * KIB, 512, unit="bytes received before a handshake is complete",
           why="ZMTP-74, 75: memory before authentication is bounded apart from MAXMSGSIZE"),
    _limit("oldest_zmtp", 1, 1, 3, unit="oldest major version of ZMTP a peer may speak",
           why="ZMTP-13, 14: 1 and 2 need NULL without a ZAP domain; with 3 the greeting is one write and saves a round trip"),
    _limit("frame_ivl", 30_000, 0, unit="ms for each KiB of a message that has begun, 0 = no limit",
           why="W7: a peer that sends a frame slowly occupies memory and a connection; the slowest real link brings a KiB in 30 s"),
    _limit("max_pending_handshakes", 1024, 1, unit="unfinished handshakes per listener", why="ZMTP-75: 1,024 x 64 KiB is 64 MiB at most"),
    _limit("max_pending_handshakes_per_ip", 64, 1, unit="unfinished handshakes per address (IPv6: per /64) and listener",
           why="one host must not use up max_pending_handshakes"),
    _limit("max_key_agreements", 5000, 0, unit="key agreements of handshakes a second and listener, 0 = no limit",
           why="C3: a CURVE handshake takes five before a peer is known; a thousand handshakes a second are a quarter of a processor"),
    _limit("max_key_agreements_per_ip", 2500, 0, unit="key agreements a second, listener and address (IPv6: /64), 0 = no limit",
           why="one host must not use up max_key_agreements; waiting handshakes take turns by address"),
    _limit("max_connections", 16384, 1, unit="accepted connections per socket",
           why="file descriptors are limited; refuse connections before accept() fails for everyone"),
    _limit("max_subscription_bytes", 16 * MIB, 1, unit="bytes of topics per subscriber", acts=Acts.ALWAYS,
           why="PSB-15: topics stay as long as the connection"),
)
# fmt: on

TABLE: Final[tuple[OptionRow, ...]] = (*_QUEUES, *_CONNECTIONS, *_PATTERNS, *_SECURITY, *_LIMITS)

_BY_NAME: Final = {row.name: row for row in TABLE}
_BY_NUMBER: Final = {row.number: row for row in TABLE if row.number is not None}
# Older names of the same option; "hwm" is both directions at once.
_ALIASES: Final = {
    "identity": "routing_id",
    "connect_rid": "connect_routing_id",
    "delay_attach_on_connect": "immediate",
    "fail_unroutable": "router_mandatory",
    "router_behavior": "router_mandatory",
}


def row_of(key: int | str) -> OptionRow:
    """Return the row of an option by number or (any-case) name; raises InvalidOption without one (EINVAL)."""
    if isinstance(key, str):
        name = key.lower()
        row = _BY_NAME.get(_ALIASES.get(name, name))
    else:
        row = _BY_NUMBER.get(key)
    if row is None:
        name = key.name if isinstance(key, c.SocketOption) else repr(key)
        raise InvalidOption(f"no socket option {name} that has a value", option=str(key))
    return row
