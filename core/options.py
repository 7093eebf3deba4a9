"""The values of one socket's options, checked against the rows of `core.option_table`.

Sessions and patterns read plain attributes (`options.sndhwm`). This file must not know sockets, sessions or the clock.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, TypedDict

from core import constants as c
from core.errors import InvalidOption
from core.option_table import KEY_CHARACTERS, KEY_OCTETS, TABLE, Kind, OptionRow, OptionValue, row_of
from core.zmtp.z85 import Z85Error, decode

if sys.version_info >= (3, 14):
    import annotationlib

if TYPE_CHECKING:
    from collections.abc import Mapping

_PROPERTY_NAME_MAX: Final = 255


def _is_hwm(key: int | str) -> bool:
    return key.lower() == "hwm" if isinstance(key, str) else key == c.HWM


def _checked(row: OptionRow, value: object) -> OptionValue:
    """Return the value as it is stored, or raise InvalidOption naming option, value and range."""
    if row.kind in (Kind.INT, Kind.BOOL):
        if isinstance(value, int) and row.low <= value <= row.high:
            return int(value)
        raise InvalidOption(f"{row.name} is {value!r}, not an integer from {row.low} to {row.high}", option=row.name)
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    if not isinstance(value, bytes | bytearray | memoryview):
        raise InvalidOption(f"{row.name} is a {type(value).__name__}, not bytes", option=row.name)
    data = bytes(value)
    # Lengths only: a key or password must not end up in an error text, a log or a bug report.
    if row.kind is Kind.KEY:
        return _key(row, data)
    if not row.low <= len(data) <= row.high:
        raise InvalidOption(f"{row.name} has {len(data)} bytes, not {row.low} to {row.high}", option=row.name)
    if row.kind is Kind.IDENTITY and data[0] == 0:
        raise InvalidOption(f"{row.name} {data.hex()} starts with 00, which marks generated ids", option=row.name)
    if row.kind is Kind.PROPERTY and data and (data[:2] != b"X-" or not 2 < data.find(b":") <= _PROPERTY_NAME_MAX):
        raise InvalidOption(f"{row.name} must be X-Name:value, with a name of up to {_PROPERTY_NAME_MAX} bytes", option=row.name)
    return data


def _key(row: OptionRow, data: bytes) -> bytes:
    """Return the 32 bytes of a key given raw or as Z85 text."""
    if len(data) == KEY_OCTETS:
        return data
    if len(data) != KEY_CHARACTERS:
        raise InvalidOption(f"{row.name} has {len(data)} bytes, not 32 (raw) or 40 (Z85)", option=row.name)
    try:
        return decode(data)
    except Z85Error as error:
        raise InvalidOption(f"{row.name} is not Z85: wrong at character {error.offset}", option=row.name) from None


def _annotations(kind: type) -> Mapping[str, object]:
    """Return what a class annotates; from Python 3.14 on a type may have no value while the program runs."""
    if sys.version_info >= (3, 14):
        return annotationlib.get_annotations(kind, format=annotationlib.Format.FORWARDREF)
    return kind.__annotations__


def declares(kind: type, base: type, name: str) -> bool:
    """Return whether a subclass of a base defines or annotates an attribute; a program may set those besides options."""
    own = kind.__mro__[: kind.__mro__.index(base)]
    return any(name in vars(one) or name in _annotations(one) for one in own)


class OptionValues:
    """Types of the options, by attribute name."""

    __slots__ = ()

    sndhwm: int
    rcvhwm: int
    sndtimeo: int
    rcvtimeo: int
    linger: int
    immediate: int
    conflate: int
    reconnect_ivl: int
    reconnect_ivl_max: int
    reconnect_stop: int
    socks_proxy: bytes
    socks_username: bytes
    socks_password: bytes
    handshake_ivl: int
    heartbeat_ivl: int
    heartbeat_ttl: int
    heartbeat_timeout: int
    connect_timeout: int
    refused_ivl: int
    backlog: int
    ipv6: int
    sndbuf: int
    rcvbuf: int
    tos: int
    tcp_keepalive: int
    tcp_keepalive_idle: int
    tcp_keepalive_cnt: int
    tcp_keepalive_intvl: int
    tcp_maxrt: int
    bindtodevice: bytes
    routing_id: bytes
    connect_routing_id: bytes
    router_mandatory: int
    router_handover: int
    probe_router: int
    hello_msg: bytes
    metadata: bytes
    req_correlate: int
    req_relaxed: int
    xpub_verbose: int
    xpub_verboser: int
    xpub_nodrop: int
    xpub_manual: int
    xpub_welcome_msg: bytes
    invert_matching: int
    plain_server: int
    plain_username: bytes
    plain_password: bytes
    curve_server: int
    curve_publickey: bytes
    curve_secretkey: bytes
    curve_serverkey: bytes
    zap_domain: bytes
    zap_enforce_domain: int
    maxmsgsize: int
    max_message_bytes: int
    max_partial_bytes: int
    max_ahead_bytes: int
    max_parts: int
    tell_limits: int
    sndhwm_bytes: int
    rcvhwm_bytes: int
    max_metadata_bytes: int
    max_handshake_bytes: int
    oldest_zmtp: int
    frame_ivl: int
    max_pending_handshakes: int
    max_pending_handshakes_per_ip: int
    max_key_agreements: int
    max_key_agreements_per_ip: int
    max_connections: int
    max_subscription_bytes: int


class UpperCase:
    """Types of a socket's upper-case attributes, which programs of pyzmq use; those after MECHANISM are read-only."""

    __slots__ = ()

    SNDHWM: int
    RCVHWM: int
    SNDTIMEO: int
    RCVTIMEO: int
    LINGER: int
    IMMEDIATE: int
    CONFLATE: int
    RECONNECT_IVL: int
    RECONNECT_IVL_MAX: int
    RECONNECT_STOP: int
    SOCKS_PROXY: bytes
    SOCKS_USERNAME: bytes
    SOCKS_PASSWORD: bytes
    HANDSHAKE_IVL: int
    HEARTBEAT_IVL: int
    HEARTBEAT_TTL: int
    HEARTBEAT_TIMEOUT: int
    CONNECT_TIMEOUT: int
    REFUSED_IVL: int
    BACKLOG: int
    IPV6: int
    SNDBUF: int
    RCVBUF: int
    TOS: int
    TCP_KEEPALIVE: int
    TCP_KEEPALIVE_IDLE: int
    TCP_KEEPALIVE_CNT: int
    TCP_KEEPALIVE_INTVL: int
    TCP_MAXRT: int
    BINDTODEVICE: bytes
    ROUTING_ID: bytes
    CONNECT_ROUTING_ID: bytes
    ROUTER_MANDATORY: int
    ROUTER_HANDOVER: int
    PROBE_ROUTER: int
    HELLO_MSG: bytes
    METADATA: bytes
    REQ_CORRELATE: int
    REQ_RELAXED: int
    XPUB_VERBOSE: int
    XPUB_VERBOSER: int
    XPUB_NODROP: int
    XPUB_MANUAL: int
    XPUB_WELCOME_MSG: bytes
    INVERT_MATCHING: int
    PLAIN_SERVER: int
    PLAIN_USERNAME: bytes
    PLAIN_PASSWORD: bytes
    CURVE_SERVER: int
    CURVE_PUBLICKEY: bytes
    CURVE_SECRETKEY: bytes
    CURVE_SERVERKEY: bytes
    ZAP_DOMAIN: bytes
    ZAP_ENFORCE_DOMAIN: int
    MAXMSGSIZE: int
    MAX_MESSAGE_BYTES: int
    MAX_PARTIAL_BYTES: int
    MAX_AHEAD_BYTES: int
    MAX_PARTS: int
    TELL_LIMITS: int
    SNDHWM_BYTES: int
    RCVHWM_BYTES: int
    MAX_METADATA_BYTES: int
    MAX_HANDSHAKE_BYTES: int
    OLDEST_ZMTP: int
    FRAME_IVL: int
    MAX_PENDING_HANDSHAKES: int
    MAX_PENDING_HANDSHAKES_PER_IP: int
    MAX_KEY_AGREEMENTS: int
    MAX_KEY_AGREEMENTS_PER_IP: int
    MAX_CONNECTIONS: int
    MAX_SUBSCRIPTION_BYTES: int
    HWM: int
    IDENTITY: bytes
    MECHANISM: int
    EVENTS: int
    RCVMORE: int
    LAST_ENDPOINT: bytes
    TYPE: int
    PEER_MAX_PARTS: int
    PEER_MAX_MESSAGE_BYTES: int
    PEER_MAXMSGSIZE: int


class SocketDefaults(OptionValues, UpperCase):
    """Types of a context's attributes: the defaults for its sockets, and its own options."""

    __slots__ = ()

    hwm: int
    identity: bytes
    subscribe: bytes | str
    IO_THREADS: int
    MAX_SOCKETS: int
    SOCKET_LIMIT: int
    MAX_MSGSZ: int


class SocketSettings(TypedDict, total=False):
    """Options of a new socket: those of the table, and other names of some.

    All have one type, so that a program may give a `dict[str, int]` as `**options`; the socket checks the values.
    """

    sndhwm: OptionValue | str
    rcvhwm: OptionValue | str
    sndtimeo: OptionValue | str
    rcvtimeo: OptionValue | str
    linger: OptionValue | str
    immediate: OptionValue | str
    conflate: OptionValue | str
    reconnect_ivl: OptionValue | str
    reconnect_ivl_max: OptionValue | str
    reconnect_stop: OptionValue | str
    socks_proxy: OptionValue | str
    socks_username: OptionValue | str
    socks_password: OptionValue | str
    handshake_ivl: OptionValue | str
    heartbeat_ivl: OptionValue | str
    heartbeat_ttl: OptionValue | str
    heartbeat_timeout: OptionValue | str
    connect_timeout: OptionValue | str
    refused_ivl: OptionValue | str
    backlog: OptionValue | str
    ipv6: OptionValue | str
    sndbuf: OptionValue | str
    rcvbuf: OptionValue | str
    tos: OptionValue | str
    tcp_keepalive: OptionValue | str
    tcp_keepalive_idle: OptionValue | str
    tcp_keepalive_cnt: OptionValue | str
    tcp_keepalive_intvl: OptionValue | str
    tcp_maxrt: OptionValue | str
    bindtodevice: OptionValue | str
    routing_id: OptionValue | str
    connect_routing_id: OptionValue | str
    router_mandatory: OptionValue | str
    router_handover: OptionValue | str
    probe_router: OptionValue | str
    hello_msg: OptionValue | str
    metadata: OptionValue | str
    req_correlate: OptionValue | str
    req_relaxed: OptionValue | str
    xpub_verbose: OptionValue | str
    xpub_verboser: OptionValue | str
    xpub_nodrop: OptionValue | str
    xpub_manual: OptionValue | str
    xpub_welcome_msg: OptionValue | str
    invert_matching: OptionValue | str
    plain_server: OptionValue | str
    plain_username: OptionValue | str
    plain_password: OptionValue | str
    curve_server: OptionValue | str
    curve_publickey: OptionValue | str
    curve_secretkey: OptionValue | str
    curve_serverkey: OptionValue | str
    zap_domain: OptionValue | str
    zap_enforce_domain: OptionValue | str
    maxmsgsize: OptionValue | str
    max_message_bytes: OptionValue | str
    max_partial_bytes: OptionValue | str
    max_ahead_bytes: OptionValue | str
    max_parts: OptionValue | str
    tell_limits: OptionValue | str
    sndhwm_bytes: OptionValue | str
    rcvhwm_bytes: OptionValue | str
    max_metadata_bytes: OptionValue | str
    max_handshake_bytes: OptionValue | str
    oldest_zmtp: OptionValue | str
    frame_ivl: OptionValue | str
    max_pending_handshakes: OptionValue | str
    max_pending_handshakes_per_ip: OptionValue | str
    max_key_agreements: OptionValue | str
    max_key_agreements_per_ip: OptionValue | str
    max_connections: OptionValue | str
    max_subscription_bytes: OptionValue | str
    hwm: OptionValue | str
    identity: OptionValue | str
    connect_rid: OptionValue | str
    delay_attach_on_connect: OptionValue | str
    fail_unroutable: OptionValue | str
    router_behavior: OptionValue | str


class Options(OptionValues):
    """Values of one socket; read as attributes, change with `set`.

    Attribute names and types are those of `TABLE`. `mechanism` follows what was set last, as in libzmq: a PLAIN option
    selects PLAIN, a CURVE option CURVE, and a server switch set to 0 goes back to NULL.
    """

    mechanism: int  # a SecurityMechanism; read-only for callers

    __slots__ = (*(row.name for row in TABLE), "mechanism")

    def __init__(self, **values: OptionValue | str) -> None:
        self.mechanism = int(c.SecurityMechanism.NULL)
        for row in TABLE:
            setattr(self, row.name, row.default)
        for name, value in values.items():
            self.set(name, value)

    def set(self, key: int | str, value: OptionValue | str) -> None:
        """Change one option.

        Args:
            key: number (`core.SNDHWM`) or name (`"sndhwm"`, `"identity"`, `"hwm"`, `"max_parts"`).
            value: int (switches take bool too) or bytes; text is encoded as UTF-8.

        Raises:
            InvalidOption: unknown option, wrong type or out of range (EINVAL); nothing is changed.
        """
        if _is_hwm(key):
            self.set("sndhwm", value)
            self.set("rcvhwm", value)
            return
        row = row_of(key)
        checked = _checked(row, value)
        setattr(self, row.name, checked)
        self._select_mechanism(row.name, checked)

    def get(self, key: int | str) -> OptionValue:
        """Return one option by number or name; "hwm" is the lower of the two.

        Raises:
            InvalidOption: unknown option (EINVAL).
        """
        if _is_hwm(key):
            return min(self.sndhwm, self.rcvhwm)
        if key == c.MECHANISM or key == "mechanism":
            return self.mechanism
        value: OptionValue = getattr(self, row_of(key).name)
        return value

    def properties(self) -> list[tuple[bytes, bytes]]:
        """Return the property that the application adds to the handshake (OPT-10), none without one."""
        name, colon, value = self.metadata.partition(b":")
        return [(name, value)] if colon else []

    def copy(self) -> Options:
        """Return an independent set with the same values."""
        twin = Options.__new__(Options)
        for name in Options.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin

    @property
    def as_server(self) -> bool:
        """Whether this side is the server of the chosen mechanism (PLAIN-01; independent of bind and connect)."""
        if self.mechanism == c.SecurityMechanism.PLAIN:
            return bool(self.plain_server)
        return self.mechanism == c.SecurityMechanism.CURVE and bool(self.curve_server)

    def _select_mechanism(self, name: str, value: OptionValue) -> None:
        if name in ("plain_server", "curve_server") and not value:
            self.mechanism = int(c.SecurityMechanism.NULL)
        elif name.startswith("plain_"):
            self.mechanism = int(c.SecurityMechanism.PLAIN)
        elif name.startswith("curve_"):
            self.mechanism = int(c.SecurityMechanism.CURVE)
