from __future__ import annotations

import asyncio
import errno
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

import core
from core.errors import HandshakeError, InvalidOption
from core.options import Options
from core.security.authenticator import curve_keypair
from core.security.curve import CurveClient, CurveServer
from core.security.curve_keys import COOKIE_LIFETIME_S
from core.security.mechanisms import Security
from core.security.plain import PlainClient, PlainServer
from core.zmtp.mechanism import Mechanism, NullMechanism
from core.zmtp.zap import ZapReply, ZapRequest

if TYPE_CHECKING:
    from collections.abc import Callable

PUBLIC, SECRET = curve_keypair()
CURVE_SERVER: dict[str, Any] = {"curve_server": 1, "curve_secretkey": SECRET}
CURVE_CLIENT: dict[str, Any] = {"curve_secretkey": SECRET, "curve_serverkey": PUBLIC}


def security(type_name: bytes = b"DEALER", announces_identity: bool = True) -> Security:
    return Security(type_name, announces_identity)


@pytest.mark.parametrize(
    "options,kind",
    [
        ({}, NullMechanism),
        ({"plain_server": 1}, PlainServer),
        ({"plain_username": b"u", "plain_password": b"p"}, PlainClient),
        ({"plain_username": b""}, PlainClient),
        (CURVE_SERVER, CurveServer),
        (CURVE_CLIENT, CurveClient),
        ({**CURVE_CLIENT, "plain_username": b"u"}, PlainClient),  # what was set last counts
        ({**CURVE_SERVER, "curve_server": 0}, NullMechanism),
        ({"plain_server": 0}, NullMechanism),
    ],
)
async def test_the_options_choose_the_mechanism_and_the_role(options: dict[str, Any], kind: type[Mechanism]) -> None:
    values = Options()
    for name, value in options.items():
        values.set(name, value)
    if options == {**CURVE_SERVER, "curve_server": 0}:
        values.set("curve_server", 0)
    mechanism = security().mechanism(values, "127.0.0.1")
    assert type(mechanism) is kind
    assert mechanism.as_server is (kind in (PlainServer, CurveServer))


@pytest.mark.parametrize(
    "type_name,announces,identity,expected",
    [
        (b"SUB", False, b"id", b"\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB"),
        (b"DEALER", True, b"", b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00"),
        (b"REQ", True, b"id", b"\x05READY\x0bSocket-Type\x00\x00\x00\x03REQ\x08Identity\x00\x00\x00\x02id"),
    ],
)
async def test_metadata_of_our_own(type_name: bytes, announces: bool, identity: bytes, expected: bytes) -> None:
    options = Options(routing_id=identity) if identity else Options()
    assert security(type_name, announces).mechanism(options, "").start() == [expected]


@pytest.mark.parametrize(
    "options,asks",
    [
        ({}, False),
        ({"zap_domain": b"d"}, True),
        (CURVE_SERVER, True),
        ({**CURVE_SERVER, "zap_enforce_domain": 1}, False),
        ({**CURVE_SERVER, "zap_enforce_domain": 1, "zap_domain": b"d"}, True),
    ],
)
async def test_who_is_asked_about_what(options: dict[str, Any], asks: bool) -> None:
    values = Options(**options)
    server = security().mechanism(values, "::1")
    if isinstance(server, CurveServer):
        client = security().mechanism(Options(**CURVE_CLIENT), "")
        client.receive(server.receive(client.start()[0])[0])
        question = server._zap
    else:
        server.start()
        question = server.zap_request
    if not asks:
        assert question is None
    else:
        assert question == ZapRequest(domain=values.zap_domain, address=b"::1")


@pytest.mark.parametrize(
    "options,missing",
    [
        ({"curve_server": 1}, "curve_secretkey"),
        ({"curve_serverkey": PUBLIC}, "curve_secretkey"),
        ({"curve_secretkey": SECRET}, "curve_serverkey"),
        ({"curve_secretkey": SECRET, "curve_serverkey": b""}, "curve_serverkey"),
        ({**CURVE_CLIENT, "curve_publickey": bytes(31) + b"\x09"}, "curve_publickey"),
        ({"curve_secretkey": SECRET, "curve_serverkey": bytes(32)}, "curve_serverkey"),
    ],
)
def test_keys_that_cannot_work_are_named(options: dict[str, Any], missing: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        security().check(Options(**options))
    assert caught.value.option == missing


def test_a_client_without_the_key_of_its_server_is_not_taken_for_one_with_a_weak_key() -> None:
    with pytest.raises(InvalidOption, match="a CURVE client needs curve_serverkey"):
        security().check(Options(curve_secretkey=SECRET))


@pytest.mark.parametrize("options", [CURVE_CLIENT, {"plain_server": 1}, {"zap_domain": b"d"}])
def test_raw_connections_have_no_handshake(options: dict[str, Any]) -> None:
    raw = Security(b"STREAM", False)
    raw.check(Options())
    with pytest.raises(InvalidOption, match="raw TCP") as caught:
        raw.check(Options(**options))
    assert caught.value.option == "security"


@pytest.mark.parametrize("options", [{}, {"plain_server": 1}, {"plain_username": b"u"}, CURVE_SERVER, CURVE_CLIENT])
async def test_what_can_work_is_left_alone(options: dict[str, Any]) -> None:
    subject = security()
    subject.check(Options(**options))
    assert isinstance(subject.mechanism(Options(**options), "127.0.0.1"), Mechanism)


@dataclass
class Due:
    """A timer that is set."""

    when: float
    callback: Callable[..., None]
    args: tuple[Any, ...]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class Clock:
    """A loop's clock and timers, in a test's hands."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.set: list[Due] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[..., None], *args: Any) -> Due:
        due = Due(when, callback, args)
        self.set.append(due)
        return due

    @property
    def due(self) -> list[Due]:
        return [one for one in self.set if not one.cancelled]

    def go(self, now: float) -> None:
        self.now = now
        while self.due and self.due[0].when <= now:
            one = self.due[0]
            one.cancel()
            one.callback(*one.args)


def half_open(subject: Security) -> tuple[Mechanism, bytes]:
    """A server after WELCOME, and the INITIATE that is to come."""
    server = subject.mechanism(Options(**CURVE_SERVER, zap_domain=b"d"), "")
    client = security().mechanism(Options(**CURVE_CLIENT), "")
    (initiate,) = client.receive(server.receive(client.start()[0])[0])
    return server, initiate


def test_curve_07_cookies_go_stale_whether_somebody_else_connects_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: clock)
    subject = security()
    early, first = half_open(subject)
    assert [one.when for one in clock.due] == [1_000.0 + COOKIE_LIFETIME_S]
    clock.go(1_010.0)
    early.receive(first)
    assert early.zap_request is not None

    late, second = half_open(subject)
    clock.go(1_010.0 + COOKIE_LIFETIME_S)  # no other connection
    with pytest.raises(HandshakeError):
        late.receive(second)

    late, third = half_open(subject)
    for step in range(1, 8):  # a connection every ten seconds
        clock.go(1_070.0 + 10 * step)
        half_open(subject)
    with pytest.raises(HandshakeError):
        late.receive(third)


async def test_the_mechanisms_of_two_sockets_share_nothing() -> None:
    server, initiate = half_open(security())
    other, _ = half_open(security())
    with pytest.raises(HandshakeError):
        other.receive(initiate)
    server.receive(initiate)
    assert server.authenticated(ZapReply(b"200"))


async def test_curve_with_a_pynacl_that_is_too_old_is_refused_before_anybody_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    public, secret = core.curve_keypair()
    monkeypatch.setattr("nacl._sodium.lib", object())
    async with core.Context() as context:
        server = context.socket(core.REP)
        server.curve_server, server.curve_secretkey = True, secret
        with pytest.raises(core.ZMQError, match=r"CURVE needs PyNaCl 1\.6 or later") as refused:
            server.bind("tcp://127.0.0.1:*")
        assert refused.value.errno == errno.ENOTSUP
        client = context.socket(core.REQ)
        client.curve_secretkey, client.curve_publickey, client.curve_serverkey = secret, public, public
        with pytest.raises(core.ZMQError, match=r"PyNaCl"):
            client.connect("tcp://127.0.0.1:9")
