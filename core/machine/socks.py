"""Client side of SOCKS 5 (RFC 1928), with a name and password (RFC 1929).

Asks a proxy for a connection. Pure.
"""

from __future__ import annotations

import ipaddress
from enum import Enum, auto
from typing import Final

_VERSION: Final = 5
_NO_AUTHENTICATION: Final = 0
_NAME_AND_PASSWORD: Final = 2
_CONNECT: Final = 1
_IPV4, _NAME, _IPV6 = 1, 3, 4
_ADDRESS_BYTES: Final = {_IPV4: 4, _IPV6: 16}
_TEXT_BYTES_MAX: Final = 255  # one byte of length before each
_REASONS: Final = {
    1: "general failure",
    2: "not allowed by its rules",
    3: "network unreachable",
    4: "host unreachable",
    5: "connection refused",
    6: "time to live expired",
    7: "command not supported",
    8: "address type not supported",
}
REFUSED: Final = 5


class SocksError(OSError):
    """The proxy did not connect; `code` is its answer, 0 if it said something else."""

    def __init__(self, reason: str, code: int = 0) -> None:
        super().__init__(f"socks proxy: {reason}")
        self.code = code


class _Waits(Enum):
    METHOD = auto()
    PASSWORD = auto()
    REPLY = auto()
    NOTHING = auto()


class SocksHandshake:
    """One request for a connection to a host and port; the proxy resolves names. Raises SocksError."""

    def __init__(self, host: str, port: int, user: bytes = b"", password: bytes = b"") -> None:
        self.done = False
        self._user = user
        self._password = password
        self._waits = _Waits.METHOD
        self._received = b""
        name = host.encode("utf-8", "surrogateescape")
        if max(len(name), len(user), len(password)) > _TEXT_BYTES_MAX:
            raise SocksError(f"a host, user or password of more than {_TEXT_BYTES_MAX} bytes")
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            target = bytes((_NAME, len(name))) + name
        else:
            target = bytes((_IPV4 if address.version == 4 else _IPV6,)) + address.packed
        self._request = bytes((_VERSION, _CONNECT, 0)) + target + port.to_bytes(2, "big")

    def hello(self) -> bytes:
        methods = (_NO_AUTHENTICATION, _NAME_AND_PASSWORD) if self._user else (_NO_AUTHENTICATION,)
        return bytes((_VERSION, len(methods), *methods))

    def receive(self, data: bytes) -> bytes:
        """Take received bytes; return bytes to send, or, when `done`, those that came after the handshake. Raises SocksError."""
        self._received += data
        if self._waits is _Waits.METHOD and len(self._received) >= 2:
            return self._on_method(self._take(2))
        if self._waits is _Waits.PASSWORD and len(self._received) >= 2:
            if self._take(2)[1] != 0:
                raise SocksError("name or password refused", 2)
            self._waits = _Waits.REPLY
            return self._request
        if self._waits is _Waits.REPLY:
            return self._on_reply()
        return b""

    def _take(self, count: int) -> bytes:
        taken, self._received = self._received[:count], self._received[count:]
        return taken

    def _on_method(self, answer: bytes) -> bytes:
        version, method = answer
        if version == _VERSION and method == _NO_AUTHENTICATION:
            self._waits = _Waits.REPLY
            return self._request
        if version == _VERSION and method == _NAME_AND_PASSWORD and self._user:
            self._waits = _Waits.PASSWORD
            return bytes((1, len(self._user))) + self._user + bytes((len(self._password),)) + self._password
        raise SocksError("it accepts none of our ways to authenticate" if version == _VERSION else "not a SOCKS 5 proxy")

    def _on_reply(self) -> bytes:
        received = self._received
        if len(received) < 5:
            return b""
        version, code, _, kind, first = received[:5]
        if version != _VERSION:
            raise SocksError("not a SOCKS 5 proxy")
        if code:
            raise SocksError(_REASONS.get(code, f"answer {code}"), code)
        if kind != _NAME and kind not in _ADDRESS_BYTES:
            raise SocksError("an address of unknown type in its answer")
        length = 4 + (1 + first if kind == _NAME else _ADDRESS_BYTES[kind]) + 2
        if len(received) < length:
            return b""
        self._take(length)
        self.done, self._waits = True, _Waits.NOTHING
        return self._take(len(self._received))
