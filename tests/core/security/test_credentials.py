"""core.security.credentials: one object secures every socket of a context, those that listen and those that connect."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

import core
from core.options import Options
from core.security.authenticator import curve_keypair
from core.security.credentials import context_for
from core.security.mechanisms import unprotected
from core.zmtp import z85

if TYPE_CHECKING:
    from pathlib import Path

PUBLIC, SECRET = curve_keypair()
CLIENT_PUBLIC, CLIENT_SECRET = curve_keypair()

PAIRS: dict[str, tuple[Any, Any]] = {
    "CURVE": (
        lambda: core.Curve(secret_key=SECRET, keys={CLIENT_PUBLIC: "ann"}),
        lambda: core.Curve(secret_key=CLIENT_SECRET, server_key=PUBLIC),
    ),
    "PLAIN": (lambda: core.Plain(users={"ann": "pw"}), lambda: core.Plain(user="ann", password="pw")),
}


@pytest.mark.parametrize("kind", ["CURVE", "PLAIN"])
async def test_both_sides_of_every_socket(kind: str) -> None:
    serving, asking = PAIRS[kind]
    async with core.Context(security=serving()) as here, core.Context(security=asking()) as there:
        for binder, connector in ((core.REP, core.REQ), (core.PULL, core.PUSH), (core.XPUB, core.SUB)):
            bound, connected = here.socket(binder), there.socket(connector)
            bound.bind("tcp://127.0.0.1:*")
            connected.connect(bound.last_endpoint)
            if connector == core.SUB:
                connected.subscribe(b"")
                assert await bound.recv() == b"\x01"
                await bound.send(b"news")
                assert await connected.recv() == b"news"
            else:
                await connected.send(b"hello")
                assert await bound.recv() == b"hello"


async def test_a_program_that_listens_and_connects_needs_one_object() -> None:
    """Two like members of a pair: each is the other's server and client."""
    both = {"one": curve_keypair(), "two": curve_keypair()}

    def member(me: str, other: str) -> core.Curve:
        return core.Curve(secret_key=both[me][1], server_key=both[other][0], keys={both[other][0]: other})

    async with core.Context(security=member("one", "two")) as one, core.Context(security=member("two", "one")) as two:
        for mine, others in ((one, two), (two, one)):
            pub, sub = mine.socket(core.XPUB), others.socket(core.SUB)
            pub.bind("tcp://127.0.0.1:*")
            sub.connect(pub.last_endpoint)
            sub.subscribe(b"")
            await pub.recv()
            await pub.send(b"state")
            assert await sub.recv() == b"state"


async def test_each_endpoint_may_have_a_key_of_its_own() -> None:
    async with core.Context(security=core.Curve(secret_key=SECRET, any_key=True)) as here:
        router = here.socket(core.ROUTER)
        router.bind("tcp://127.0.0.1:*")
        asking = core.Curve(server_key=CLIENT_PUBLIC, server_keys={router.last_endpoint: PUBLIC})
        async with core.Context(security=asking) as there:
            dealer = there.socket(core.DEALER)
            dealer.connect(router.last_endpoint)
            await dealer.send(b"hello")
            assert (await router.recv_multipart())[1] == b"hello"


async def test_inproc_needs_no_security_and_own_options_are_kept() -> None:
    async with core.Context(security=core.Curve(secret_key=SECRET, any_key=True)) as context:
        left, right = context.socket(core.PAIR), context.socket(core.PAIR)
        left.bind("inproc://x")
        right.connect("inproc://x")
        await left.send(b"hello")
        assert await right.recv() == b"hello"
        own = context.socket(core.ROUTER, curve_server=1, curve_secretkey=CLIENT_SECRET)
        own.bind("tcp://127.0.0.1:*")
        async with core.Context(security=core.Curve(server_key=CLIENT_PUBLIC)) as there:
            dealer = there.socket(core.DEALER)
            dealer.connect(own.last_endpoint)
            await dealer.send(b"hello")
            assert (await own.recv_multipart())[1] == b"hello"


@pytest.mark.parametrize(
    "security,verb",
    [
        (core.Curve(secret_key=SECRET, server_key=PUBLIC), "bind"),
        (core.Curve(any_key=True), "bind"),
        (core.Curve(secret_key=SECRET, any_key=True), "connect"),
        (core.Plain(user="ann", password="pw"), "bind"),
        (core.Plain(users={"ann": "pw"}), "connect"),
    ],
)
async def test_half_a_security_is_refused_at_the_endpoint(security: core.Curve | core.Plain, verb: str) -> None:
    """Deny by default: without authorized clients none is accepted."""
    async with core.Context(security=security) as context:
        with pytest.raises(core.InvalidOption):
            getattr(context.socket(core.ROUTER), verb)("tcp://127.0.0.1:1024")


@pytest.mark.parametrize("key", ["", "x", b"", bytes(31), "~" * 40])
def test_what_is_no_key_is_refused(key: str | bytes) -> None:
    with pytest.raises(core.InvalidOption):
        core.Curve(secret_key=key)
    with pytest.raises(core.InvalidOption):
        core.Curve(server_key=key)
    with pytest.raises(core.InvalidOption):
        core.Curve(server_keys={"tcp://x:1": key})


def test_a_secret_is_shared_with_a_server_of_the_same_key_alone() -> None:
    one = core.Curve(secret_key=SECRET, server_key=PUBLIC, server_keys={"tcp://other:1": CLIENT_PUBLIC})
    assert one.shared_with("tcp://same:1") == one.lasting_secret == z85.decode(SECRET)
    assert one.shared_with("tcp://other:1") is None
    one.expect_same("tcp://other:2", "tcp://other:1")
    one.expect_same("tcp://same:2", "tcp://same:1")
    assert [one.shared_with(f"tcp://{name}:2") is None for name in ("other", "same")] == [True, False]
    one.expect_same("tcp://other:1", "tcp://other:2")
    temporary = core.Curve(server_key=PUBLIC)
    assert temporary.lasting_secret is temporary.shared_with("tcp://same:1") is None


def test_passwords_have_a_digest_and_a_client_none() -> None:
    digest = core.Plain(users={"ann": "pw"}).lasting_secret
    assert digest is not None
    assert len(digest) == 32
    assert digest == core.Plain(users={"ann": "pw"}).lasting_secret != core.Plain(users={"ann": "other"}).lasting_secret
    assert core.Plain(user="ann", password="pw").lasting_secret is core.Plain(users={}).lasting_secret is None


def test_a_client_has_the_options_of_its_server_or_is_refused() -> None:
    options = Options()
    curve = core.Curve(secret_key=CLIENT_SECRET, server_key=PUBLIC)
    curve.for_connecting(options, "tcp://x:1")
    assert (options.curve_publickey, options.curve_serverkey) == (z85.decode(CLIENT_PUBLIC), z85.decode(PUBLIC))
    with pytest.raises(core.InvalidOption, match="the public key of the server at tcp://x:1 is not known"):
        core.Curve(secret_key=CLIENT_SECRET).for_connecting(options, "tcp://x:1")
    with pytest.raises(core.InvalidOption, match="needs a user and a password"):
        core.Plain(users={}).for_connecting(options, "tcp://x:1")


async def test_a_context_made_for_a_server_takes_no_ipc_path_in_use() -> None:
    async with context_for(None, None) as made, core.Context() as given:
        assert made.exclusive_ipc
        assert context_for(given, None) is given
        with pytest.raises(TypeError, match="give the security to the context"):
            context_for(given, core.Plain(users={}))


def test_nothing_secret_shows() -> None:
    shown = repr(core.Curve(secret_key=SECRET)) + repr(core.Plain(user="ann", password="hunter2"))
    assert PUBLIC.decode() in shown
    assert SECRET.decode() not in shown
    assert "hunter2" not in shown


async def test_a_context_has_its_own_security() -> None:
    async with core.Context() as context:
        with pytest.raises(TypeError):
            core.context_for(context, core.Curve(server_key=PUBLIC))
        assert core.context_for(context, None) is context


@pytest.mark.parametrize(
    "endpoint,options,word",
    [
        ("tcp://127.0.0.1:1", {}, ""),
        ("tcp://[::1]:1", {}, ""),
        ("ipc:///x", {}, ""),
        ("tcp://0.0.0.0:1", {}, "ANYBODY"),
        ("tcp://[::]:1", {}, "ANYBODY"),
        ("tcp://10.1.2.3:1", {}, "ANYBODY"),
        ("tcp://[fe80::1%eth0]:1", {}, "ANYBODY"),
        ("tcp://10.1.2.3:1", {"plain_server": 1}, "PASSWORDS"),
        ("tcp://10.1.2.3:1", {"curve_server": 1, "curve_secretkey": SECRET}, ""),
        ("tcp://10.1.2.3:1", {"zap_domain": b"global"}, ""),
    ],
)
def test_what_is_dangerous_about_listening_there(endpoint: str, options: dict[str, Any], word: str) -> None:
    said = unprotected(Options(**options), endpoint)
    assert said.startswith(word)
    assert bool(said) == bool(word)


async def test_it_is_said_once_and_loudly(caplog: pytest.LogCaptureFixture) -> None:
    async with core.Context() as context:
        for _ in range(3):
            context.bound_unprotected("tcp://0.0.0.0:5555", "ANYBODY MAY CONNECT")
    (record,) = caplog.records
    assert record.levelname == "WARNING"


async def test_a_password_that_is_taken_back_cuts_who_is_in_by_it() -> None:
    """Fault C5, for PLAIN."""
    security = core.Plain(users={"ann": "pw", "bob": "pw"})
    gone: asyncio.Queue[bytes] = asyncio.Queue()
    async with core.Context(security=security) as here:
        router = here.socket(core.ROUTER)
        router.bind("tcp://127.0.0.1:*")
        router.set_receiver(lambda _: None, on_peer=lambda peer, joined: None if joined else gone.put_nowait(peer))
        async with (
            core.Context(security=core.Plain(user="ann", password="pw")) as one,
            core.Context(security=core.Plain(user="bob", password="pw")) as two,
        ):
            for context, name in ((one, b"a"), (two, b"b")):
                dealer = context.socket(core.DEALER, identity=name)
                dealer.connect(router.last_endpoint)
                await dealer.send(b"x")
            while security.authenticator is None or security.authenticator.accepted < 2:
                await asyncio.sleep(0.005)
            security.authenticator.set_passwords({"ann": "another", "bob": "pw"})
            assert await gone.get() == b"a"
            assert gone.empty()


def test_the_authorized_keys_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"{CLIENT_PUBLIC.decode()} ann\n")
    security = core.Curve(secret_key=SECRET, authorized_keys=path)
    assert security.authenticator is not None
    assert core.Curve(secret_key=SECRET).authenticator is None
