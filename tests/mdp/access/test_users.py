"""Authenticated user of a request: workers that may see it, peers that may name another, keys by user."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

import core
import mdp
from mdp.cluster.lending_broker import LendingBroker
from mdp.wire.commands import client_request
from tests.mdp.broker.test_authorization import Guarded
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from mdp.wire.commands import Dialect

PASSWORDS = {"ann": "a", "bob": "b", "store": "s", "root": "r", "east": "e"}
CALLERS = {"who": ["ann", "bob"], "call": ["*"]}
SEEING = {"who": ["store"], "serve": ["*"], "see_users": ["seen*"]}


def plain(user: str) -> core.Plain:
    return core.Plain(user=user, password=PASSWORDS[user])


def rules(*tables: Mapping[str, Any]) -> mdp.Rules:
    return mdp.Rules({"allow": list(tables)})


async def who(request: mdp.Request) -> bytes:
    """Answer with the user."""
    return b"-" if request.user is None else request.user.encode()


class Counting:
    """Answers with the user and how many requests were executed."""

    def __init__(self) -> None:
        self.done = 0

    async def __call__(self, request: mdp.Request) -> bytes:
        self.done += 1
        return f"{request.user}-{self.done}".encode()


async def call_of(request: mdp.Request, word: str) -> str:
    """Answer a typed call with the user."""
    return f"{word} {request.user}"


@asynccontextmanager
async def guarded(
    *tables: Mapping[str, Any], handler: Any = who, services: tuple[str, ...] = ("seen", "blind"), user: str = "store"
) -> AsyncIterator[str]:
    """Serve some services at a broker with PLAIN users and rules; yield where."""
    workers: list[mdp.Worker] = []
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(mdp.Broker(security=core.Plain(users=PASSWORDS), rules=rules(*tables), manage=True))
        where = broker.bind("tcp://127.0.0.1:*")
        for service in services:
            worker = await stack.enter_async_context(mdp.Worker(where, service, handler=handler, security=plain(user), concurrency=4))
            workers.append(worker)
        await eventually(lambda: all(worker.connected for worker in workers))
        yield where


async def ask(where: str, user: str, service: str, *, key: str | None = None, body: bytes = b"x") -> bytes:
    async with mdp.Client(where, security=plain(user)) as client:
        return (await client.request(service, body, key=key))[0]


async def test_a_worker_with_the_right_gets_the_user_of_each_request() -> None:
    async with guarded(CALLERS, SEEING) as where:
        for user in ("ann", "bob"):
            assert await ask(where, user, "seen") == user.encode()
            assert await ask(where, user, "seen", key="k") == user.encode()
            assert await ask(where, user, "blind") == b"-"


async def test_one_connection_gets_its_own_user_however_its_requests_travel() -> None:
    async with guarded(CALLERS, SEEING) as where, mdp.Client(where, security=plain("ann")) as client:
        asked = [client.request("seen", b"x" * size) for size in (1, 300, 5000) for _ in range(20)]
        asked += [client.request("seen", b"x", deadline=20.0), client.request("seen", b"x", wait=True)]
        assert {reply[0] for reply in await asyncio.gather(*asked)} == {b"ann"}


async def test_a_typed_handler_gets_the_user_with_its_request() -> None:
    mdp.service("seen")(call_of)
    async with guarded(CALLERS, SEEING, handler=call_of, services=("seen",)) as where, mdp.Client(where, security=plain("bob")) as client:
        assert await client.call("seen", "hello") == "hello bob"


async def test_without_security_there_is_no_user() -> None:
    async with mdp.Broker() as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        async with mdp.Worker(where, "seen", handler=who) as worker, mdp.Client(where) as client:
            await eventually(lambda: worker.connected)
            assert await client.request("seen", b"x") == [b"-"]


@pytest.mark.parametrize("dialect", ["0.1", "0.2"])
async def test_a_client_of_an_old_dialect_has_a_user_too(dialect: Dialect) -> None:
    async with guarded(CALLERS, SEEING) as where, core.Context(security=plain("ann")) as context:
        with context.socket(core.DEALER) as socket:
            socket.connect(where)
            socket.send_multipart(client_request(dialect, b"seen", [b"x"]))
            assert (await socket.recv_multipart())[-1] == b"ann"


async def raw(where: str, security: core.Plain | None, service: bytes, options: Mapping[str, Any]) -> list[bytes]:
    """Send one request of MDP/0.3 with options of our own choice; return what comes back, without its head."""
    async with core.context_for(None, security) as context:
        with context.socket(core.DEALER) as socket:
            socket.connect(where)
            socket.send_multipart([b"MDPC03\x01" + bytes(8), service, msgpack.packb(options), b"x"])
            return (await socket.recv_multipart())[1:]


async def options_of(request: mdp.Request) -> bytes:
    """Answer with everything the worker knows of the user."""
    return f"{request.user} {request.key!r} {request.trace}".encode()


@pytest.mark.parametrize("service", [b"seen", b"blind"])
@pytest.mark.parametrize("named", ["bob", "", "root"])
@pytest.mark.parametrize("more", [{}, {"key": b"k"}, {"deadline_ms": 20_000, "trace": {"a": "b"}}])
async def test_a_user_that_a_client_names_is_dropped(service: bytes, named: str, more: dict[str, Any]) -> None:
    async with guarded(CALLERS, SEEING, handler=options_of) as where:
        (told,) = await raw(where, plain("ann"), service, {"user": named, **more})
        mine = "ann" if service == b"seen" else None
        assert told == f"{mine} {more.get('key')!r} {more.get('trace')}".encode()


async def test_without_rules_too() -> None:
    async with mdp.Broker() as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        async with mdp.Worker(where, "seen", handler=who) as worker:
            await eventually(lambda: worker.connected)
            assert await raw(where, None, b"seen", {"user": "ann"}) == [b"-"]
            assert broker.counters["users_not_believed"] == 1


@pytest.mark.parametrize("user", [7, b"ann", "x" * 256, ["ann"]])
async def test_a_user_that_is_none_is_a_bad_request(user: object) -> None:
    async with guarded(CALLERS, SEEING) as where:
        assert (await raw(where, plain("ann"), b"seen", {"user": user}))[0] == b"BAD_REQUEST"


@pytest.mark.parametrize("service", ["seen", "blind"])
async def test_a_key_is_its_users_own(service: str) -> None:
    handler = Counting()
    async with guarded(CALLERS, SEEING, handler=handler, services=(service,)) as where:
        first = {user: await ask(where, user, service, key="k") for user in ("ann", "bob")}
        again = {user: await ask(where, user, service, key="k") for user in ("ann", "bob")}
        assert first == again
        assert handler.done == 2
        assert await ask(where, "bob", service, key="l", body=b"other")
        assert await ask(where, "ann", service, key="l", body=b"another")  # no conflict with another user's body


async def test_keys_of_one_connection_that_take_the_short_way() -> None:
    handler = Counting()
    async with guarded(CALLERS, SEEING, handler=handler, services=("blind",)) as where:
        async with mdp.Client(where, security=plain("ann")) as ann, mdp.Client(where, security=plain("bob")) as bob:
            for client in (ann, bob, ann, bob):
                await client.request("blind", b"warm")
            for number in range(20):
                mine = await ann.request("blind", b"x", key=f"k{number}")
                assert mine != await bob.request("blind", b"x", key=f"k{number}")
                assert mine == await ann.request("blind", b"x", key=f"k{number}")


async def test_users_that_a_broker_without_rules_does_not_know_are_kept_apart() -> None:
    """A user who is named by a broker with rules is not believed here, and gets no other user's answer."""
    handler = Counting()
    async with mdp.Broker() as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        async with mdp.Worker(where, "seen", handler=handler):
            answers = [await raw(where, None, b"seen", {"user": user, "key": b"k", "wait": True}) for user in ("ann", "bob", "ann")]
    assert answers == [[b"None-1"], [b"None-2"], [b"None-1"]]


async def test_no_client_says_whose_its_key_is() -> None:
    handler = Counting()
    async with guarded(CALLERS, SEEING, handler=handler, services=("blind",)) as where:
        for number in range(2):
            assert await raw(where, plain("ann"), b"blind", {"key": b"k", "owner": bytes([number]) * 16}) == [b"None-1"]
        assert (await raw(where, plain("ann"), b"blind", {"key": b"l", "owner": b"short"}))[0] == b"BAD_REQUEST"


def users_broker() -> mdp.Broker:
    return mdp.Broker(security=core.Plain(users=PASSWORDS), rules=rules(CALLERS, SEEING), start_hold_ms=20_000)


async def test_a_key_is_still_its_users_own_when_the_broker_has_been_killed() -> None:
    """IDM-07, BEY-11: a blind worker answers from its kept replies, each user with the user's own."""
    handler = Counting()
    answers = []
    async with AsyncExitStack() as lives, AsyncExitStack() as stack:
        where = (await lives.enter_async_context(users_broker())).bind("tcp://127.0.0.1:*")
        worker = mdp.Worker(where, "blind", handler=handler, security=plain("store"), reconnect_ms=10)
        await stack.enter_async_context(worker)
        answers.append([await ask(where, user, "blind", key="k") for user in ("ann", "bob")])
        await lives.aclose()
        (await lives.enter_async_context(users_broker())).bind(where)
        await eventually(lambda: worker.connected and worker.session_counters.connections == 2)
        answers.append([await ask(where, user, "blind", key="k") for user in ("ann", "bob")])
    assert answers == [[b"None-1", b"None-2"]] * 2


@pytest.mark.parametrize("more", [{f"x{number}": 0 for number in range(62)}, {"x": bytes(8192 - 28)}])
async def test_options_as_large_as_they_may_be_reach_a_worker_that_sees_users(more: dict[str, Any]) -> None:
    """Do not count what the broker adds against the limits of the client."""
    async with guarded(CALLERS, SEEING, handler=options_of) as where:
        options = {"key": b"k", "deadline_ms": 20_000, **more}
        assert await raw(where, plain("ann"), b"seen", options) == [b"ann b'k' None"]


QUESTIONS = [
    ((b"call", b"ann", b"blind"), "200"),
    ((b"call", b"ann", b"titanic.look"), "200"),
    ((b"call", b"store", b"blind"), "404"),
    ((b"manage", b"ann", b"blind"), "404"),
    ((b"manage", b"root", b"blind"), "200"),
    ((b"serve", b"store", b"blind"), "200"),
    ((b"see_users", b"store", b"blind"), "404"),
    ((b"call", b"", b"blind"), "404"),
    ((b"call", b"\xff", b"blind"), "404"),
    ((b"fly", b"ann", b"blind"), "400"),
    ((b"call", b"ann"), "400"),
]


@pytest.mark.parametrize(("question", "code"), QUESTIONS)
async def test_a_worker_that_sees_users_may_ask_what_they_may_do(question: tuple[bytes, ...], code: str) -> None:
    async with (
        guarded(CALLERS, SEEING, {"who": ["root"], "manage": ["*"]}, services=()) as where,
        mdp.Client(where, security=plain("store")) as client,
    ):
        assert await client.request("mmi.allowed", *question) == [code.encode()]


@pytest.mark.parametrize("user", ["ann", "root"])
async def test_other_users_may_not(user: str) -> None:
    async with (
        guarded(CALLERS, SEEING, {"who": ["root"], "manage": ["*"], "call": ["*"]}, services=()) as where,
        mdp.Client(where, security=plain(user)) as client,
    ):
        assert await client.request("mmi.allowed", b"call", b"bob", b"blind") == [b"403"]


async def test_a_broker_without_rules_allows_everything() -> None:
    async with mdp.Broker() as broker, mdp.Client(broker.bind("tcp://127.0.0.1:*")) as client:
        assert await client.request("mmi.allowed", b"manage", b"", b"x") == [b"200"]
        assert await client.request("mmi.allowed", b"manage", b"x") == [b"400"]


class East(core.Plain):
    """Lets clients in, and goes to its peer under its own name."""

    def __init__(self) -> None:
        super().__init__(user="east", password=PASSWORDS["east"], users=PASSWORDS)


@pytest.mark.parametrize("believed", [True, False])
async def test_a_peer_broker_names_its_users_where_it_may(believed: bool) -> None:
    handler = Counting()
    peer = {"who": ["east"], "call": ["mmi.lending", "seen"], **({"pass_users": ["seen"]} if believed else {})}
    async with (
        guarded(SEEING, peer, handler=handler, services=("seen",)) as west,
        LendingBroker([west], state_ms=50, security=East(), rules=rules(CALLERS)) as east,
    ):
        where = east.bind("tcp://127.0.0.1:*")
        async with mdp.Client(where, security=plain("ann")) as ann, mdp.Client(where, security=plain("bob")) as bob:
            names = ["ann", "bob"] if believed else ["east", "east"]
            assert await ann.request("seen", b"x", wait=True) == [f"{names[0]}-1".encode()]
            assert await bob.request("seen", b"x", wait=True) == [f"{names[1]}-2".encode()]
            # Whether it is believed or not, one of its users never gets the answer of another.
            assert await ann.request("seen", b"x", key="k", wait=True) == [f"{names[0]}-3".encode()]
            assert await bob.request("seen", b"x", key="k", wait=True) == [f"{names[1]}-4".encode()]


def test_what_is_given_to_another_worker_or_tried_again_by_an_operator_keeps_its_user() -> None:
    scene = Guarded(rules(CALLERS, SEEING, {"who": ["root"], "manage": ["*"]}), deliveries_max=2, manage=True)
    scene.users.update({b"c": "ann", b"w": "store", b"v": "store", b"u": "store", b"r": "root"})

    def user_at(worker: bytes) -> str:
        user = msgpack.unpackb(scene.work(worker).options)["user"]
        assert isinstance(user, str)
        return user

    scene.ready("0.3", b"w", b"seen")
    scene.ask("0.3", b"c", service=b"seen")
    assert user_at(b"w") == "ann"
    scene.ready("0.3", b"v", b"seen")
    scene.lose(b"w")
    scene.beat(b"v")
    assert user_at(b"v") == "ann"
    scene.lose(b"v")
    (letter,) = scene.machine.dead_letters
    scene.ready("0.3", b"u", b"seen")
    scene.ask("0.3", b"r", b"%d" % letter.number, service=b"mmi.dlq.retry")
    assert user_at(b"u") == "ann"


def test_new_rules_give_and_take_the_right() -> None:
    scene = Guarded(rules(CALLERS, SEEING))
    scene.users.update({b"c": "ann", b"w": "store"})
    scene.ready("0.3", b"w", b"seen")
    for tables, told in (([SEEING], True), ([{"who": ["store"], "serve": ["*"]}], False), ([SEEING], True)):
        scene.set_rules({"allow": [CALLERS, *tables]})
        for _ in range(2):
            scene.ask("0.3", b"c", service=b"seen")
            work = scene.work(b"w")
            assert work.options == (msgpack.packb({"user": "ann"}) if told else b"")
            scene.answer(b"w", work)


def test_a_name_no_options_could_carry_may_do_nothing() -> None:
    scene = Guarded()
    scene.users.update({b"c": "x" * 256, b"w": "store"})
    scene.ready("0.3", b"w", b"seen")
    scene.ask("0.3", b"c", service=b"seen")
    assert not scene.at_worker(b"w")
    scene.users.update({b"d": "x" * 255, b"w": "store"})
    scene.ask("0.3", b"d", service=b"seen")
    assert scene.work(b"w").body


async def test_the_report_of_workers_says_who_serves() -> None:
    async with guarded(CALLERS, SEEING) as where, mdp.Client(where, security=plain("ann")) as client:
        _, report = await client.request("mmi.workers", b"")
        assert {(worker["service"], worker["user"]) for worker in json.loads(report)} == {("seen", "store"), ("blind", "store")}


def test_what_was_said_of_a_user_is_forgotten_with_the_rules() -> None:
    scene = Guarded(rules(CALLERS, SEEING))
    scene.users.update({b"s": "store"})

    def told() -> list[bytes]:
        scene.send(b"s", client_request("0.1", b"mmi.allowed", [b"call", b"ann", b"echo"]))
        return scene.got(b"s")[0][-1:]

    assert told() == told() == [b"200"]
    scene.set_rules({"allow": [SEEING]})
    assert told() == [b"404"]
    for number in range(2000):  # of its own choice; the broker remembers no more than so many
        scene.send(b"s", client_request("0.1", b"mmi.allowed", [b"call", b"%d" % number, b"echo"]))
    assert len(scene.got(b"s")) == 2000
