"""The authenticator: address lists, passwords, CURVE keys; peers that no rule accepts are refused.

    keys = core.Authenticator(authorized_keys="/etc/broker/keys", deny=["10.0.0.0/8"])
    async with core.Context(authenticator=keys) as context: ...

An authorized-keys file has one client per line: its public key as 40 Z85 characters, then optionally its name. Other lines are ignored
and logged; `#` starts a comment, and in front of a key disables it. The file is read again when it changes, and clients whose key was
removed are disconnected within a second. While the file cannot be read, no new client is accepted, and connected clients stay.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from core.constants import ROUTER
from core.daemon.logs import RateLimitedLog
from core.errors import InvalidOption, RemoteProtocolError
from core.runtime import cold_files, runtime, supervision
from core.runtime.supervision import ONCE
from core.security.curve_keys import KEY_BYTES, KEY_CHARACTERS, key_pair, parse_key, same_octets
from core.security.curve_keys import public_key as raw_public_key
from core.security.guess_limit import GUESSES_MAX, WINDOW_S, GuessLimit
from core.security.zap_client import verdict_of
from core.zmtp import z85
from core.zmtp.zap import ZAP_ENDPOINT, Judge, ZapReply, ZapRequest

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from core.net.socket_port import SocketFactory
    from core.zmtp.frames import Message

# A changed file is read when it has not changed for so long: an editor may empty it first and then fill it.
_QUIET_S: Final = 0.05
_READS_MAX: Final = 20  # a file that keeps changing for a second is taken as it is

_ACCEPTED: Final = b"200"
_COME_AGAIN: Final = ZapReply(b"300", b"keys cannot be read")
_REFUSED: Final = ZapReply(b"400", b"not allowed")

_log = logging.getLogger("core.authenticator")


def curve_keypair() -> tuple[bytes, bytes]:
    """Make a CURVE key pair: (public, secret), 40 Z85 characters each."""
    public, secret = key_pair(runtime.current().random_bytes)
    return z85.encode(public), z85.encode(secret)


def curve_public(secret: bytes | str) -> bytes:
    """Return the public key, 40 Z85 characters, of a secret one, 40 Z85 characters or 32 bytes."""
    return z85.encode(raw_public_key(key_octets(secret)))


def key_octets(key: bytes | str, option: str = "key") -> bytes:
    """Return the 32 bytes of a key given raw or as Z85 text; raises InvalidOption."""
    octets = parse_key(key)
    if octets is None:
        raise InvalidOption(msg=f"{option} is no CURVE key: {KEY_BYTES} bytes or {KEY_CHARACTERS} Z85 characters", option=option)
    return octets


def parse_authorized_keys(text: str) -> tuple[dict[bytes, str], list[int]]:
    """Parse an authorized-keys file: 32-byte key to name or, without one, Z85 text; and the numbers of malformed lines."""
    keys: dict[bytes, str] = {}
    wrong: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        word, _, name = line.strip().partition(" ")
        try:
            # Z85 contains "#": a word that is exactly a key is a key, even if it begins with "#".
            keys[key_octets(word)] = name.strip() or word
        except InvalidOption:
            if word and not word.startswith("#"):
                wrong.append(number)
    return keys, wrong


class _Addresses:
    """A set of peer addresses: `10.0.0.0/8`, `::1`, and `uid:1000` or `ipc` for local peers."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._networks: list[ipaddress.IPv4Network | ipaddress.IPv6Network] = []
        self._uids: set[str] = set()
        self._any_local = False
        for text in texts:
            self._add(text)

    def __bool__(self) -> bool:
        return bool(self._networks or self._uids or self._any_local)

    def _add(self, text: str) -> None:
        if text == "ipc":
            self._any_local = True
        elif text.startswith("uid:") and text[4:].isdigit():
            self._uids.add(text[4:])
        else:
            try:
                self._networks.append(ipaddress.ip_network(text, strict=False))
            except ValueError:
                raise InvalidOption(msg=f"{text!r} is no address, network, uid:N or ipc", option="address") from None

    def __contains__(self, address: str) -> bool:
        nothing, _, rest = address.partition(":")
        uid = rest.partition(":")[0]
        if not nothing and (uid.isdigit() or not rest):
            # `:uid:gid:pid` of an ipc peer, empty where the system does not tell
            return self._any_local or uid in self._uids
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return False
        if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
            ip = ip.ipv4_mapped
        return any(ip in network for network in self._networks)


class _KeyFile:
    """Current keys of an authorized-keys file."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self.keys: dict[bytes, str] = {}
        self.readable = False
        self._stamp: tuple[int, int, int] | None = None

    async def _look(self) -> tuple[int, int, int]:
        status = await cold_files.status(self.path)
        return status.st_mtime_ns, status.st_size, status.st_ino

    async def refresh(self) -> bool:
        """Read the file if it has changed; returns whether its keys have changed."""
        try:
            stamp = await self._look()
            if stamp == self._stamp and self.readable:
                return False
            text, stamp = await self._read_quiet(stamp)
        except (OSError, UnicodeDecodeError) as error:
            if self.readable or self._stamp is None:
                _log.warning("authorized keys cannot be read", extra={"path": str(self.path), "reason": str(error)})
            self.readable, self._stamp = False, (0, 0, 0)
            return False
        before, (self.keys, wrong) = self.keys, parse_authorized_keys(text)
        self.readable, self._stamp = True, stamp
        for number in wrong:
            _log.warning("line is no key", extra={"path": str(self.path), "line": number})
        return self.keys != before

    async def _read_quiet(self, stamp: tuple[int, int, int]) -> tuple[str, tuple[int, int, int]]:
        """Read the file when it has not been written for a moment."""
        reads = 0
        while True:
            if self._stamp is not None:  # a change: the file may be being edited
                await asyncio.sleep(_QUIET_S)
            text = await cold_files.read_text(self.path)
            before, stamp = stamp, await self._look()
            reads += 1
            if before == stamp or reads == _READS_MAX:
                return text, stamp


class Authenticator:
    """Checks the credentials of peers, for a context.

    Args:
        allow: addresses that may connect, even without credentials (NULL); when given, no others may.
        deny: addresses that may not connect, whatever else allows it.
        passwords: PLAIN user name to password.
        keys: CURVE public key, 32 bytes or 40 Z85 characters, to the name of its owner.
        authorized_keys: file with more keys.
        any_key: accept every CURVE client that passes the address lists; its name is its key as Z85.
        guesses_max: wrong passwords of one address, of a /64 for IPv6, in `guesses_window_s`; until that is over, further ones get 300.
        guesses_window_s: seconds.
        clock: reads monotonic seconds; by default the runtime's.

    Attributes:
        accepted: number of accepted peers.
        refused: number of refused peers.
        guesses_refused: of those, peers whose address had tried too many wrong passwords.

    Raises:
        InvalidOption: a malformed address or key.
    """

    def __init__(
        self,
        *,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        passwords: Mapping[str, str] | None = None,
        keys: Mapping[bytes, str] | Mapping[str, str] | Mapping[bytes | str, str] | None = None,
        authorized_keys: str | Path | None = None,
        any_key: bool = False,
        guesses_max: int = GUESSES_MAX,
        guesses_window_s: float = WINDOW_S,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.accepted = 0
        self.refused = 0
        self.guesses_refused = 0
        self._guesses = GuessLimit(guesses_max, guesses_window_s)
        self._clock = clock if clock is not None else runtime.current().monotonic
        self._log = RateLimitedLog(_log)
        self._allow = _Addresses(allow)
        self._deny = _Addresses(deny)
        self._passwords = {user.encode(): password.encode() for user, password in (passwords or {}).items()}
        self._keys = {key_octets(key): name for key, name in (keys or {}).items()}
        self._file = None if authorized_keys is None else _KeyFile(authorized_keys)
        self._any_key = any_key
        self._generation = 0

    # -- changes while peers are connected

    def set_password(self, user: str, password: str | None) -> None:
        """Set the password of a PLAIN user; None removes the user and disconnects its peers."""
        if password is None:
            self._passwords.pop(user.encode(), None)
        else:
            self._passwords[user.encode()] = password.encode()
        self._generation += 1

    def set_passwords(self, passwords: Mapping[str, str]) -> None:
        """Replace all PLAIN users; peers with a removed name or password are disconnected."""
        self._passwords = {user.encode(): password.encode() for user, password in passwords.items()}
        self._generation += 1

    def passwords_digest(self) -> bytes | None:
        """Return a digest of all PLAIN users and their passwords, 32 bytes; None without users."""
        from hashlib import blake2b  # here: see `core.security.curve_keys.same_octets`

        pairs = sorted(self._passwords.items())
        octets = b"".join(len(text).to_bytes(4, "big") + text for pair in pairs for text in pair)
        return blake2b(octets, digest_size=32).digest() if pairs else None

    def authorize(self, key: bytes | str, name: str = "") -> None:
        """Accept a CURVE client from now on."""
        octets = key_octets(key)
        self._keys[octets] = name or z85.encode(octets).decode()

    def revoke(self, key: bytes | str) -> None:
        """Remove a key that was given by `keys` or `authorize`, and disconnect its peers."""
        self._keys.pop(key_octets(key), None)
        self._generation += 1

    async def generation(self) -> int:
        """See `core.security.zap_client.Revoking`."""
        await self._refresh()
        return self._generation

    async def _refresh(self) -> None:
        if self._file is not None:
            changed = await self._file.refresh()
            # After the wait, because others may change it meanwhile.
            self._generation += changed

    # -- verdicts

    async def __call__(self, request: ZapRequest) -> ZapReply:
        if request.mechanism == b"CURVE":
            await self._refresh()
        reply = self.verdict(request)
        address = request.address.decode("ascii", "backslashreplace")
        if reply.accepted:
            self.accepted += not request.connected
        else:
            self.refused += 1
            mechanism = request.mechanism.decode("ascii", "backslashreplace")
            peer = {"mechanism": mechanism, "address": address, "status_code": reply.status_code.decode(), **_claimed(request)}
            self._log.warning((mechanism, _host(address)), "peer refused", **peer)
        return reply

    def verdict(self, request: ZapRequest) -> ZapReply:
        """Check a peer without reading the file again."""
        address = request.address.decode("ascii", "backslashreplace")
        if address in self._deny or (self._allow and address not in self._allow):
            return _REFUSED
        match request.mechanism, request.credentials:
            case b"NULL", ():
                return ZapReply(_ACCEPTED) if self._allow else _REFUSED
            case b"PLAIN", (user, password):
                # A connected peer is no guess, and has no part in those of its address.
                return self._verdict_on_password(user, password) if request.connected else self._guess(user, password, _host(address))
            case b"CURVE", (key,):
                return self._verdict_on_key(key, request.connected)
        return _REFUSED

    def _guess(self, user: bytes, password: bytes, host: str) -> ZapReply:
        now = self._clock()
        if not self._guesses.may_try(host, now):
            self.guesses_refused += 1
            return _COME_AGAIN
        reply = self._verdict_on_password(user, password)
        if not reply.accepted:
            self._guesses.wrong(host, now)
        return reply

    def _verdict_on_password(self, user: bytes, password: bytes) -> ZapReply:
        known = self._passwords.get(user)
        # An unknown user takes as long as a wrong password.
        right = same_octets(password, password + b"?" if known is None else known)
        return ZapReply(_ACCEPTED, b"OK", user) if right and known is not None else _REFUSED

    def _verdict_on_key(self, key: bytes, connected: bool) -> ZapReply:
        name = self._keys.get(key)
        if name is None and self._file is not None:
            if not (self._file.readable or self._any_key or connected):
                return _COME_AGAIN
            name = self._file.keys.get(key)
        if name is None and self._any_key and len(key) == KEY_BYTES:
            name = z85.encode(key).decode()
        return _REFUSED if name is None else ZapReply(_ACCEPTED, b"OK", name.encode())


def _host(address: str) -> str:
    """Return what stays when a peer reconnects: its address, or its user on this machine (`:uid:gid:pid`)."""
    user, colon, _ = address.removeprefix(":").partition(":")
    return f":{user}" if address.startswith(":") and colon and user.isdigit() else address


def _claimed(request: ZapRequest) -> dict[str, str]:
    """Return the claimed identity of a refused peer for the log: user name or public key, never a password."""
    match request.mechanism, request.credentials:
        case b"PLAIN", (user, _):
            return {"user": user.decode("utf-8", "backslashreplace")}
        case b"CURVE", (key,) if len(key) == KEY_BYTES:
            return {"key": z85.encode(key).decode()}
    return {}


class ZapHandler:
    """Serves an authenticator at the ZAP endpoint of a context (ZAP-01, ZAP-09, ZAP-11).

    Args:
        context: of the sockets that ask.
        judge: as for `Context.authenticator`; requests are handled concurrently.
        questions_max: how many at once; a peer beyond them gets status 300 and may try again.

    Attributes:
        malformed: malformed requests, which were dropped.
        put_off: requests answered with 300, because too many had no verdict yet.
    """

    def __init__(self, context: SocketFactory, judge: Judge, *, questions_max: int = 10_000) -> None:
        self.malformed = self.put_off = 0
        self._questions_max = questions_max
        self._judge = judge
        self._socket = context.inner_socket(ROUTER, linger=0)
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._socket.bind(ZAP_ENDPOINT)
        self._socket.set_receiver(self._received)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._socket.close(linger=0)
        await supervision.cancel_all(self._tasks)

    def _received(self, messages: list[Message]) -> None:
        for message in messages:
            try:
                request = ZapRequest.decode(message)
            except RemoteProtocolError:
                self.malformed += 1
                continue
            if len(self._tasks) >= self._questions_max:
                self.put_off += 1
                self._socket.send_multipart(ZapReply(b"300", b"too many questions").encode(request))
                continue
            supervision.current().task("core authenticator", partial(self._answer, request), restart=ONCE, among=self._tasks)

    async def _answer(self, request: ZapRequest) -> None:
        reply = await verdict_of(self._judge, request)
        self._socket.send_multipart(reply.encode(request))
