"""core.auth.base: rules by address, domain, password, certificate and callback; both kinds of programs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

import core
from core import auth
from core.auth.asyncio import AsyncioAuthenticator
from core.auth.ioloop import IOLoopAuthenticator
from core.auth.thread import ThreadAuthenticator
from core.zmtp.z85 import decode

if TYPE_CHECKING:
    from pathlib import Path

    from core.auth.base import AuthenticatedContext

PUBLIC, SECRET = core.curve_keypair()


class Rules(auth.Authenticator):
    """An authenticator without a context."""

    def _shared_context(self) -> AuthenticatedContext:
        return core.Context()


async def verdict(rules: auth.Authenticator, mechanism: bytes, *credentials: bytes, domain: bytes = b"") -> tuple[bytes, bytes]:
    reply = await rules(core.ZapRequest(mechanism, domain, b"10.0.0.1", credentials=credentials))
    return reply.status_code, reply.user_id


async def test_without_rules_only_null_is_accepted() -> None:
    rules = Rules()
    assert await verdict(rules, b"NULL") == (b"200", b"anonymous")
    assert (await verdict(rules, b"PLAIN", b"ann", b"x"))[0] == b"400"
    assert (await verdict(rules, b"CURVE", decode(PUBLIC)))[0] == b"400"
    assert (await verdict(rules, b"GSSAPI", b"x"))[0] == b"400"


async def test_addresses() -> None:
    denied, allowed = Rules(), Rules()
    denied.deny("10.0.0.1")
    allowed.allow("10.0.0.2")
    assert [(await verdict(rules, b"NULL"))[0] for rules in (denied, allowed)] == [b"400", b"400"]
    allowed.allow("10.0.0.1")
    assert (await verdict(allowed, b"NULL"))[0] == b"200"
    with pytest.raises(ValueError, match="combined"):
        denied.allow("10.0.0.1")
    with pytest.raises(ValueError, match="combined"):
        allowed.deny("10.0.0.1")


async def test_passwords_belong_to_a_domain() -> None:
    rules = Rules()
    rules.configure_plain(domain="shop", passwords={"ann": "secret"})
    assert await verdict(rules, b"PLAIN", b"ann", b"secret", domain=b"shop") == (b"200", b"ann")
    for user, password, domain in (
        (b"ann", b"secret", b""),
        (b"ann", b"wrong", b"shop"),
        (b"bob", b"secret", b"shop"),
        (b"\xff", b"", b"shop"),
    ):
        assert (await verdict(rules, b"PLAIN", user, password, domain=domain))[0] == b"400"


async def test_certificates_and_any_key(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rules = Rules()
    _, secret = auth.create_certificates(tmp_path, "ann")
    known = auth.load_certificate(secret)[0]
    rules.configure_curve(location=tmp_path)
    assert await verdict(rules, b"CURVE", decode(known)) == (b"200", known)
    assert (await verdict(rules, b"CURVE", decode(PUBLIC)))[0] == b"400"
    rules.configure_curve(location=auth.CURVE_ALLOW_ANY)
    assert (await verdict(rules, b"CURVE", decode(PUBLIC)))[0] == b"200"
    with caplog.at_level(logging.ERROR, "zmq.auth"):
        rules.configure_curve(location=tmp_path / "none")
    assert "cannot load" in caplog.text
    assert (await verdict(rules, b"CURVE", decode(PUBLIC)))[0] == b"400"


async def test_a_function_decides() -> None:
    class Plain:
        def callback(self, domain: str, key: bytes) -> bool:
            return (domain, key) == ("*", PUBLIC)

    class Waits(Plain):
        async def callback(self, domain: str, key: bytes) -> bool:  # type: ignore[override]  # both kinds are possible
            return key == PUBLIC

    for provider in (Plain(), Waits()):
        rules = Rules()
        rules.configure_curve_callback(credentials_provider=provider)
        assert (await verdict(rules, b"CURVE", decode(PUBLIC)))[0] == b"200"
        assert (await verdict(rules, b"CURVE", bytes(32)))[0] == b"400"
        assert (await verdict(rules, b"CURVE", decode(PUBLIC), domain=b"other"))[0] == b"400"


async def test_it_decides_for_a_context_until_it_is_stopped() -> None:
    async with core.Context() as context:
        rules = AsyncioAuthenticator(context)
        rules.start()
        assert context.authenticator is rules
        rules.configure_plain(passwords={"ann": "secret"})
        server = context.socket(core.PULL, plain_server=1, linger=0)
        server.bind("tcp://127.0.0.1:*")
        client = context.socket(core.PUSH, plain_username=b"ann", plain_password=b"secret", linger=0)
        client.connect(server.last_endpoint)
        await client.send(b"x")
        assert (await server.recv(copy=False)).get("User-Id") == "ann"
        rules.stop()
        assert context.authenticator is None


def test_the_older_name_warns_of_a_loop() -> None:
    context = core.Context()
    assert IOLoopAuthenticator(context).context is context
    with pytest.warns(DeprecationWarning, match="no effect"):
        IOLoopAuthenticator(context, io_loop=object())


def test_blocking_programs_use_the_shared_context() -> None:
    rules = ThreadAuthenticator()
    rules.start()
    assert rules.is_alive()
    rules.stop()
    assert not rules.is_alive()
    rules.context.term()  # type: ignore[attr-defined]  # it is the shared one
