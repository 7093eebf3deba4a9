"""A stored request belongs to its user.

No verb gives it to another, and no service runs that the broker forbids.
"""

from __future__ import annotations

import asyncio
import tomllib
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Self

import msgpack
import pytest

import core
import mdp
import titanic
from tests.scenes.mdp_handlers import NO_LISTENER
from tests.scenes.waiting import eventually
from titanic.wire import tsp

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path
    from types import TracebackType

PASSWORDS = {"ann": "a", "bob": "b", "store": "s", "desk": "d", "root": "r"}
TENANTS = '[[allow]]\nwho = ["ann", "bob"]\ncall = ["echo", "own-*", "titanic.*"]\n'
STORE = '[[allow]]\nwho = ["store"]\nserve = ["titanic.*"]\ncall = ["*"]\nsee_users = ["titanic.*"]\n'
WORKERS = '[[allow]]\nwho = ["desk"]\nserve = ["*"]\n'
ROOT = '[[allow]]\nwho = ["root"]\ncall = ["*"]\nmanage = ["*"]\n'
RULES = TENANTS + STORE + WORKERS + ROOT
NO_UUID = b"0" * 32


def plain(user: str) -> core.Plain:
    return core.Plain(user=user, password=PASSWORDS[user])


def rules(text: str) -> mdp.Rules:
    return mdp.Rules(tomllib.loads(text))


class Scene:
    """A broker with rules, a store, a worker of `echo` and `secret`, and clients by user."""

    def __init__(self, text: str = RULES, directory: Path | None = None, **options: Any) -> None:
        self.rules = rules(text)
        self.directory = directory
        self.options = options
        self.guard: Callable[[], bool] | None = None
        self.executed: list[bytes] = []
        self.users: list[str | None] = []
        self._stack = AsyncExitStack()
        self._clients: dict[str, titanic.Client] = {}

    async def __aenter__(self) -> Self:
        self.broker = await self._stack.enter_async_context(mdp.Broker(security=core.Plain(users=PASSWORDS), rules=self.rules))
        self.where = self.broker.bind("tcp://127.0.0.1:*")
        for service in ("echo", "secret"):
            worker = mdp.Worker(self.where, service, handler=self._execute, security=plain("desk"))
            await self._stack.enter_async_context(worker)
        await self.open_store()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.store.__aexit__(None, None, None)
        await self._stack.aclose()

    async def open_store(self) -> None:
        disk = titanic.RealDisk(str(self.directory)) if self.directory is not None else None
        stored = titanic.Store(disk, titanic.JournalOptions() if disk is not None else None)
        options = titanic.ServiceOptions(permission_ms=20, **self.options)
        self.store = titanic.Service(self.where, stored, options, security=plain("store"), seed=1, guard=self.guard)
        await self.store.__aenter__()
        await eventually(lambda: self.store.connected)

    async def restart(self) -> None:
        await self.store.__aexit__(None, None, None)
        await self.open_store()

    async def _execute(self, request: mdp.Request) -> list[bytes]:
        self.executed.append(request.service.encode())
        self.users.append(request.user)
        return request.body

    async def client(self, user: str) -> titanic.Client:
        if user not in self._clients:
            self._clients[user] = await self._stack.enter_async_context(titanic.Client(self.where, security=plain(user)))
        return self._clients[user]

    async def ask(self, user: str, service: bytes, *frames: bytes) -> Sequence[bytes]:
        return await (await self.client(user)).ask(service, *frames)

    async def submit(self, user: str, service: str = "echo", **options: Any) -> bytes:
        return (await (await self.client(user)).submit(service, b"hello", **options)).uuid.encode()

    async def submit_answered(self, user: str) -> bytes:
        uuid = await self.submit(user)
        assert await self.ask(user, b"titanic.wait", uuid, b"20000") == [b"200", b"hello"]
        return uuid

    async def rows(self, user: str) -> list[dict[str, Any]]:
        found = await (await self.client(user)).look("requests", "", 0, 100)
        assert isinstance(found, list)
        return found


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with Scene() as made:
        yield made


VERBS = [(b"titanic.reply",), (b"titanic.wait", b"1"), (b"titanic.close",)]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("answered", [True, False])
async def test_what_is_anothers_is_as_if_it_were_not_there(scene: Scene, verb: tuple[bytes, ...], answered: bool) -> None:
    service, *more = verb
    uuid = await scene.submit_answered("ann") if answered else await scene.submit("ann", "own-absent")
    assert await scene.ask("bob", service, uuid, *more) == await scene.ask("bob", service, NO_UUID, *more)
    assert await scene.ask("ann", tsp.REPLY, uuid) == ([b"200", b"hello"] if answered else [b"300"])


@pytest.mark.parametrize("verb", VERBS)
async def test_an_operator_may_do_it(scene: Scene, verb: tuple[bytes, ...]) -> None:
    service, *more = verb
    uuid = await scene.submit_answered("ann")
    assert (await scene.ask("root", service, uuid, *more))[0] == b"200"
    assert (await scene.ask("ann", tsp.REPLY, uuid))[0] == (b"400" if service == tsp.CLOSE else b"200")


async def test_a_list_shows_whats_ones_own(scene: Scene) -> None:
    mine = {user: (await scene.submit_answered(user)).decode() for user in ("ann", "bob", "ann")}
    uuid = (await scene.submit("ann")).decode()
    assert {row["uuid"] for row in await scene.rows("bob")} == {mine["bob"]}
    assert uuid in {row["uuid"] for row in await scene.rows("ann")}
    assert {row["owner"] for row in await scene.rows("ann")} == {"ann"}
    assert {row["owner"] for row in await scene.rows("root")} == {"ann", "bob"}
    assert len(await scene.rows("root")) == 4
    status = await (await scene.client("bob")).look("status")
    assert status == {"state": "serving", "problems": 0, "requests": 1}
    assert (await (await scene.client("root")).look("status"))["requests"] == 4


async def test_what_is_closed_is_out_of_its_owners_list(scene: Scene) -> None:
    uuid = await scene.submit_answered("ann")
    assert await scene.ask("ann", tsp.CLOSE, uuid) == [b"200"]
    assert await scene.rows("ann") == []
    assert scene.store.store.index.owned == {}


async def test_a_key_is_its_users_own(scene: Scene) -> None:
    first = {user: await scene.submit(user, key="order-1") for user in ("ann", "bob")}
    assert first["ann"] != first["bob"]
    assert first == {user: await scene.submit(user, key="order-1") for user in ("ann", "bob")}
    for uuid in first.values():
        await scene.ask("root", tsp.CLOSE, uuid)
    # Keys of what is closed too.
    assert first == {user: await scene.submit(user, key="order-1") for user in ("ann", "bob")}


async def test_what_the_broker_forbids_a_user_is_not_stored(scene: Scene) -> None:
    with pytest.raises(titanic.Forbidden, match="ann may not call secret"):
        await scene.submit("ann", "secret")
    assert issubclass(titanic.Forbidden, titanic.BadRequest)
    assert await scene.rows("root") == []
    assert scene.store.store.counters["forbidden"] == 1
    assert await scene.submit("root", "secret")
    await eventually(lambda: scene.executed == [b"secret"])


async def test_what_is_forbidden_later_is_given_up(scene: Scene) -> None:
    uuid = await scene.submit("ann", "echo", delay=0.3)
    scene.broker.set_rules(rules(RULES.replace('"echo", "own-*"', '"own-*"')))
    assert await scene.ask("ann", b"titanic.wait", uuid, b"20000") == [b"500", b"FORBIDDEN: ann may not call echo"]
    with pytest.raises(titanic.DeadLettered, match="FORBIDDEN"):
        await (await scene.client("ann")).ticket(uuid.decode()).result(timeout=100)
    assert scene.executed == []


async def test_while_the_broker_does_not_say_what_users_may_do_nothing_of_theirs_is_taken_or_run(scene: Scene) -> None:
    waits = await scene.submit("ann", "echo", delay=0.3)
    scene.broker.set_rules(rules(RULES.replace('see_users = ["titanic.*"]', "")))
    scene.broker.set_rules(rules(RULES.replace('see_users = ["titanic.*"]', 'see_users = ["titanic.re*"]')))
    assert (await scene.ask("ann", tsp.REPLY, waits))[0] == b"300"
    blind = rules(RULES.replace('see_users = ["titanic.*"]', ""))
    scene.broker.set_rules(blind)
    # Requests of a user are not shown to peers without a name.
    assert (await scene.ask("ann", tsp.REPLY, waits))[0] == b"400"
    await eventually(lambda: scene.store._permissions.failed)
    assert scene.executed == []
    scene.broker.set_rules(scene.rules)
    assert await scene.ask("ann", b"titanic.wait", waits, b"20000") == [b"200", b"hello"]


async def test_half_of_a_pair_that_becomes_passive_while_it_asks_delivers_nothing() -> None:
    scene = Scene()
    may_send = False
    scene.guard = lambda: may_send or not scene.store.delivery.in_flight
    async with scene:
        uuid = await scene.submit("ann")
        await eventually(lambda: scene.executed or scene.store._permissions.asked >= 3)  # its own right, the submission, the dispatch
        assert scene.executed == []
        may_send = True
        assert await scene.ask("ann", b"titanic.wait", uuid, b"20000") == [b"200", b"hello"]


async def test_owners_survive_a_restart_of_the_store(tmp_path: Path) -> None:
    async with Scene(directory=tmp_path) as scene:
        answered, keyed = await scene.submit_answered("ann"), await scene.submit("ann", "own-absent", key="k")
        closed = await scene.submit("ann", key="closed")
        await scene.ask("ann", tsp.CLOSE, closed)
        for _ in range(2):
            await scene.restart()
            assert await scene.ask("bob", tsp.REPLY, answered) == [b"400"]
            assert await scene.ask("ann", tsp.REPLY, answered) == [b"200", b"hello"]
            assert await scene.submit("ann", "own-absent", key="k") == keyed
            assert await scene.submit("ann", key="closed") == closed
            assert len(await scene.rows("ann")) == 2
        assert keyed != await scene.submit("bob", "own-absent", key="k")
        assert closed != await scene.submit("bob", key="closed")


@pytest.mark.parametrize("ownerless", ["operators", "everybody"])
async def test_what_was_stored_before_there_were_owners(tmp_path: Path, ownerless: str) -> None:
    async with Scene(RULES.replace('see_users = ["titanic.*"]', ""), tmp_path) as before:
        uuid = await before.submit_answered("ann")
    async with Scene(directory=tmp_path, ownerless=ownerless) as scene:
        assert await scene.ask("ann", tsp.REPLY, uuid) == ([b"200", b"hello"] if ownerless == "everybody" else [b"400"])
        assert await scene.ask("root", tsp.REPLY, uuid) == [b"200", b"hello"]
        assert [row["owner"] for row in await scene.rows("root")] == [None]


async def stage(scene: Scene, user: str, name: bytes = b"job/0", service: bytes = b"echo", row: bytes = b"x") -> Sequence[bytes]:
    rows = msgpack.packb([[b"k%d" % number, [row]] for number in range(3)])
    return await scene.ask(user, b"titanic.batch", b"stage", name, b"0", b"60000", service, rows)


async def commit(scene: Scene, user: str, batch: bytes = b"job") -> Any:
    while True:
        reply = await scene.ask(user, b"titanic.batch", b"commit", batch, msgpack.packb([[b"job/0", 1]]))
        if reply[0] != b"300":
            return reply


async def test_batches_of_two_users_with_the_same_name_are_two(scene: Scene) -> None:
    for user, row in (("ann", b"a"), ("bob", b"b")):
        assert await stage(scene, user, row=row) == [b"200"]
    replies = [await commit(scene, user) for user in ("ann", "bob")]
    assert [msgpack.unpackb(reply[1])["rows"] for reply in replies] == [3, 3]
    found = {}
    for user in ("ann", "bob"):
        status, total, uuids, keys = await scene.ask(user, b"titanic.batch", b"rows", b"job", b"0", b"10")
        assert (status, total, msgpack.unpackb(keys)) == (b"200", b"3", [b"k0", b"k1", b"k2"])
        found[user] = [uuids[at : at + 16].hex().upper().encode() for at in range(0, 48, 16)]
    for uuid in found["bob"]:
        assert (await scene.ask("ann", tsp.REPLY, uuid)) == [b"400"]
        assert await scene.ask("bob", b"titanic.wait", uuid, b"20000") == [b"200", b"b"]
    assert await scene.ask("ann", b"titanic.batch", b"close", b"job") == [b"200"]
    assert {row["owner"] for row in await scene.rows("root")} == {"bob"}


async def test_anothers_batch_is_none(scene: Scene) -> None:
    await stage(scene, "ann")
    assert (await commit(scene, "bob"))[0] == b"400"
    assert await scene.ask("bob", b"titanic.batch", b"abort", b"job") == [b"200", b"0"]
    assert (await commit(scene, "ann"))[0] == b"200"
    assert (await scene.ask("bob", b"titanic.batch", b"rows", b"job", b"0", b"10"))[0] == b"400"
    assert await scene.ask("bob", b"titanic.batch", b"close", b"job") == [b"200"]
    assert (await scene.ask("ann", b"titanic.batch", b"rows", b"job", b"0", b"10"))[0] == b"200"


async def test_ends_are_ones_own(scene: Scene) -> None:
    mine = {user: await scene.submit_answered(user) for user in ("ann", "bob")}
    for user, uuid in mine.items():
        status, total, uuids, _ = await scene.ask(user, b"titanic.batch", b"ends", b"", b"0", b"%d" % 2**52, b"0", b"10")
        assert (status, total, uuids.hex().upper().encode()) == (b"200", b"1", uuid)


@pytest.mark.parametrize("believed", [True, False])
async def test_a_worker_gets_the_user_of_the_stored_request(believed: bool) -> None:
    text = TENANTS + STORE + ('pass_users = ["echo"]\n' if believed else "") + WORKERS + 'see_users = ["echo"]\n'
    async with Scene(text) as scene:
        for user in ("ann", "bob", "ann"):
            await scene.submit_answered(user)
        assert scene.users == (["ann", "bob", "ann"] if believed else ["store"] * 3)


async def test_rows_for_a_forbidden_service_are_not_staged(scene: Scene) -> None:
    assert await stage(scene, "ann", service=b"secret") == [b"400", b"FORBIDDEN: ann may not call secret"]


@pytest.mark.parametrize(
    "service",
    [b"", pytest.param(b"s" * 256, id="long"), pytest.param(b"s" * 1_000_000, id="huge"), b"\xe9", b"mmi.allowed", b"titanic.staged"],
)
async def test_what_is_no_service_is_nothing_to_ask_the_broker_about(scene: Scene, service: bytes) -> None:
    """Answers are cached by user name: long invented names must not fill the memory of the store."""
    await scene.submit_answered("ann")
    before = scene.store._permissions.asked
    status, reason = await stage(scene, "ann", service=service)
    assert (status, len(reason) < 100) == (b"400", True)
    assert not reason.startswith(b"FORBIDDEN")
    assert (await scene.ask("ann", tsp.REQUEST, service, b"x"))[0] == b"400"
    assert scene.store._permissions.asked == before


async def test_without_security_all_requests_are_accessible_to_all() -> None:
    async with mdp.Broker() as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        async with titanic.Service(where, titanic.Store(None, None)), titanic.Client(where) as ann, titanic.Client(where) as bob:
            ticket = await ann.submit("absent", b"x", key="k")
            assert (await bob.submit("absent", b"x", key="k")).uuid == ticket.uuid
            assert await bob.ticket(ticket.uuid).fetch() is None
            assert [row["owner"] for row in await bob.look("requests", "", 0, 10)] == [None]
            await bob.ticket(ticket.uuid).close()
            with pytest.raises(titanic.UnknownRequest):
                await ticket.fetch()


async def test_a_store_that_may_not_see_users_says_so(caplog: pytest.LogCaptureFixture) -> None:
    async with Scene(RULES.replace('see_users = ["titanic.*"]', "")):
        await eventually(lambda: "see_users" in caplog.text)


async def test_a_thousand_at_once_ask_the_broker_once(scene: Scene) -> None:
    client = await scene.client("ann")
    before = scene.store._permissions.asked
    await asyncio.gather(*(client.submit("own-absent", b"x") for _ in range(200)))
    assert scene.store._permissions.asked - before < 50


async def test_a_broker_that_tells_no_users_is_nothing_to_warn_of(caplog: pytest.LogCaptureFixture) -> None:
    async with titanic.Service(NO_LISTENER, titanic.Store(None, None)) as service:
        await eventually(lambda: service._permissions.failed)
        assert "what users may do" not in caplog.text


def asked(body: bytes, key: str = "", service: bytes = b"echo", ms: bytes = b"20000") -> tuple[bytes, ...]:
    return (b"ask", ms, *tsp.encode_options(tsp.Options(key.encode())), service, body)


async def test_what_is_asked_for_is_stored_once_and_answered_when_it_has_ended(scene: Scene) -> None:
    assert await scene.ask("ann", tsp.BATCH, *asked(b"one", "k")) == [b"200", b"new", b"one"]
    assert await scene.ask("ann", tsp.BATCH, *asked(b"one", "k")) == [b"200", b"kept", b"one"]
    status, state, uuid = await scene.ask("ann", tsp.BATCH, *asked(b"two", "k2", b"own-absent", b"1"))
    assert (status, state) == (b"300", b"new")
    assert await scene.ask("ann", tsp.REPLY, uuid) == [b"300"]
    assert scene.executed == [b"echo"]
    # A key is its user's own, and what was closed is not executed again.
    assert await scene.ask("bob", tsp.BATCH, *asked(b"one", "k")) == [b"200", b"new", b"one"]
    for row in await scene.rows("root"):
        await scene.ask("root", tsp.CLOSE, row["uuid"].encode())
    assert (await scene.ask("ann", tsp.BATCH, *asked(b"one", "k")))[0] == b"400"
    assert scene.executed == [b"echo"] * 2


async def test_what_cannot_be_asked_for_is_refused_with_a_reason_and_not_stored(scene: Scene) -> None:
    refused = [
        (asked(b"x", "k", b"secret"), b"FORBIDDEN: ann may not call secret"),
        (asked(b"x"), b"ask needs a key"),
        (asked(b"x", "k", ms=b"soon"), b"number"),
        (asked(b"x", "k", b"titanic.batch"), b"are not stored"),
        ((b"ask", b"1"), b"a request is a service"),
        ((b"ask",), b"a request is a service"),
        ((b"ask", b"1", tsp.OPTIONS_MARK, b"\xc1", b"echo", b"x"), b"msgpack"),
    ]
    for frames, reason in refused:
        reply = await scene.ask("ann", tsp.BATCH, *frames)
        assert (reply[0], reason in reply[1]) == (b"400", True), reply
    assert await scene.ask("ann", tsp.BATCH, *asked(b"x", "k")) == [b"200", b"new", b"x"]
    assert (await scene.ask("ann", tsp.BATCH, *asked(b"y", "k")))[0] == b"400"
    assert len(await scene.rows("root")) == 1
