"""Every cell of the tables of rights in docs/security.md, with the rules of deploy/example."""

from __future__ import annotations

import json
import tomllib
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

import core
import mdp
import titanic
from core.security.authenticator import curve_keypair
from tests.scenes.docs_page import Page
from tests.scenes.mdp_handlers import echo
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

RULES = tomllib.loads((Path(__file__).parents[2] / "deploy" / "example" / "rules.toml").read_text())
# What the rows "with `call` of it" are about.
MORE = {"allow": [*RULES["allow"], {"who": ["client", "client-*"], "call": ["titanic.look", "titanic.batch"]}]}
KEYS = {user: curve_keypair() for user in ("broker", "client", "client-2", "worker", "titanic", "operator")}
WHO = {"owner": "client", "another user": "client-2"}
NUMBERS = count(1)


def table(first: str, second: str) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the table of the page whose head begins like this."""
    lines = iter(Page("security.md").text.splitlines())
    head = next(line for line in lines if line.startswith(f"| {first} | {second} |"))
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith("| "):
            break
        rows.append(_cells(line))
    return _cells(head)[1:], rows


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def security(user: str) -> core.Curve:
    return core.Curve(secret_key=KEYS[user][1], server_key=KEYS["broker"][0])


class Stage:
    """Broker, worker and store as in deploy/example, and a client of every user."""

    def __init__(self, stack: AsyncExitStack, broker: mdp.Broker) -> None:
        self.broker = broker
        self.where = broker.endpoints[0]
        self._stack = stack
        self._clients: dict[str, mdp.Client] = {}

    async def ask(self, user: str, service: str, *frames: bytes) -> list[bytes]:
        """Ask as a user; the code of an error stands for the answer."""
        client = self._clients.get(user)
        if client is None:
            client = mdp.Client(self.where, security=security(user))
            self._clients[user] = await self._stack.enter_async_context(client)
        try:
            return await client.request(service, *frames)
        except mdp.RequestError as error:
            return [error.code.encode()]

    async def submit(self, user: str = "client", key: bytes = b"") -> bytes:
        options = [b"\x01TSP\x01", msgpack.packb({"key": key})] if key else []
        status, uuid = await self.ask(user, "titanic.request", *options, b"echo", b"x")
        assert status == b"200"
        return uuid

    async def answered(self) -> bytes:
        uuid = await self.submit()
        assert await self.ask("client", "titanic.wait", uuid, b"20000") == [b"200", b"x"]
        return uuid

    async def stage(self, user: str = "client") -> bytes:
        name = b"job-%d" % next(NUMBERS)
        assert (await self.batch(user, b"stage", name + b"/0", b"0", b"60000", b"echo", msgpack.packb([[b"k", [b"x"]]])))[0] == b"200"
        return name

    async def commit(self, name: bytes, user: str = "client") -> list[bytes]:
        while (reply := await self.batch(user, b"commit", name, msgpack.packb([[name + b"/0", 1]])))[0] == b"300":
            pass
        return reply

    async def committed(self) -> bytes:
        name = await self.stage()
        assert (await self.commit(name))[0] == b"200"
        return name

    async def batch(self, user: str, *frames: bytes) -> list[bytes]:
        return await self.ask(user, "titanic.batch", *frames)


@asynccontextmanager
async def stage_with(rules: dict[str, Any]) -> AsyncIterator[Stage]:
    async with AsyncExitStack() as stack:
        guard = core.Curve(secret_key=KEYS["broker"][1], keys={public: user for user, (public, _) in KEYS.items()})
        broker = await stack.enter_async_context(mdp.Broker(security=guard, rules=mdp.Rules(rules), manage=True))
        where = broker.bind("tcp://127.0.0.1:*")
        worker = await stack.enter_async_context(mdp.Worker(where, "echo", handler=echo, security=security("worker")))
        store = titanic.Service(where, titanic.Store(None, None), security=security("titanic"))
        await stack.enter_async_context(store)
        await eventually(lambda: worker.connected and store.connected)
        yield Stage(stack, broker)


# ---- the store


async def _submit(stage: Stage, user: str, service: bytes = b"echo") -> str:
    reply = await stage.ask(user, "titanic.request", service, b"x")
    return _told(reply)


def _told(reply: Sequence[bytes]) -> str:
    """Return a status, and whether it is the rules that refuse."""
    refused = len(reply) > 1 and reply[1].startswith(b"FORBIDDEN")
    return reply[0].decode() + (" FORBIDDEN" if refused else "")


async def _again(stage: Stage, user: str) -> str:
    key = b"order-%d" % next(NUMBERS)
    uuid = await stage.submit(key=key)
    reply = await stage.ask(user, "titanic.request", b"\x01TSP\x01", msgpack.packb({"key": key}), b"echo", b"x")
    return ("the same UUID" if reply[1] == uuid else "another UUID") if reply[0] == b"200" else _told(reply)


def _of_no(what: str, none: Sequence[bytes], reply: Sequence[bytes]) -> str:
    """Return the status of a reply, and that it is what is said of nothing when it is."""
    same = list(reply) == list(none) and reply[0] == b"400"
    return f"400, as of no {what}" if same else _told(reply)


async def _touch(stage: Stage, user: str, service: str, more: tuple[bytes, ...] = ()) -> str:
    uuid = await stage.answered()
    none = await stage.ask(user, service, b"0" * 32, *more)
    return _of_no("request", none, await stage.ask(user, service, uuid, *more))


async def _close(stage: Stage, user: str) -> str:
    uuid = await stage.answered()
    reply = await stage.ask(user, "titanic.close", uuid)
    left = await stage.ask("client", "titanic.reply", uuid)
    return f"{_told(reply)}, {'not closed' if left[0] == b'200' else 'closed'}"


async def _list(stage: Stage, user: str) -> str:
    uuid = await stage.answered()
    reply = await stage.ask(user, "titanic.look", b"requests", b"", b"0", b"1000")
    return reply[0].decode() if len(reply) < 2 else "shown" if uuid in reply[1] else "not shown"


async def _status(stage: Stage, user: str) -> str:
    await stage.answered()
    _, status = await stage.ask(user, "titanic.look", b"status")
    return "state, own count" if json.loads(status).keys() == {"state", "problems", "requests"} else "everything"


async def _stage(stage: Stage, user: str) -> str:
    rows = msgpack.packb([[b"k", [b"x"]]])
    return _told(await stage.batch(user, b"stage", b"job-%d/0" % next(NUMBERS), b"0", b"60000", b"echo", rows))


async def _rows(stage: Stage, user: str) -> str:
    name = await stage.committed()
    none = await stage.batch(user, b"rows", b"none", b"0", b"10")
    return _of_no("batch", none, await stage.batch(user, b"rows", name, b"0", b"10"))


async def _commit(stage: Stage, user: str) -> str:
    name = await stage.stage()
    reply = await stage.commit(name, user)
    absent = reply[0] == b"400" and reply[1] == b"not staged any more: " + name + b"/0"
    return "400, as of no stage" if absent else _told(reply)


async def _abort(stage: Stage, user: str) -> str:
    name = await stage.stage()
    return f"{(await stage.batch(user, b'abort', name))[1].decode()} dropped"


async def _close_batch(stage: Stage, user: str) -> str:
    name = await stage.committed()
    reply = await stage.batch(user, b"close", name)
    left = await stage.batch("client", b"rows", name, b"0", b"10")
    return f"{_told(reply)}, {'not closed' if left[0] == b'200' else 'closed'}"


async def _ends(stage: Stage, user: str) -> str:
    uuid = await stage.answered()
    uuids = (await stage.batch(user, b"ends", b"", b"0", b"%d" % 2**52, b"0", b"1000"))[2]
    return "shown" if bytes.fromhex(uuid.decode()) in {uuids[at : at + 16] for at in range(0, len(uuids), 16)} else "not shown"


WITH = ", with `call` of it"
AT_STORE: dict[str, Callable[[Stage, str], Awaitable[str]]] = {
    "`titanic.request`, a service the user may call": _submit,
    "`titanic.request`, any other service": partial(_submit, service=b"other"),
    "`titanic.request`, the owner's key again": _again,
    "`titanic.reply`": partial(_touch, service="titanic.reply"),
    "`titanic.wait`": partial(_touch, service="titanic.wait", more=(b"1",)),
    "`titanic.close`": _close,
    "`titanic.look requests`": _list,
    f"`titanic.look requests`{WITH}": _list,
    f"`titanic.look status`{WITH}": _status,
    f"`titanic.batch stage`{WITH}": _stage,
    f"`titanic.batch rows`{WITH}": _rows,
    f"`titanic.batch commit` of the owner's stage{WITH}": _commit,
    f"`titanic.batch abort`{WITH}": _abort,
    f"`titanic.batch close`{WITH}": _close_batch,
    f"`titanic.batch ends`{WITH}": _ends,
}


@pytest.mark.parametrize("more", [False, True])
async def test_the_table_of_stored_requests(more: bool) -> None:
    columns, rows = table("verb", "owner")
    assert {row[0] for row in rows} == set(AT_STORE)
    async with stage_with(MORE if more else RULES) as stage:
        for verb, *cells in rows:
            if verb.endswith(WITH) == more:
                for column, cell in zip(columns, cells, strict=True):
                    assert (verb, column, await AT_STORE[verb](stage, WHO.get(column, column))) == (verb, column, cell)


# ---- the broker


async def _call(stage: Stage, user: str, *services: str) -> set[bool]:
    return {(await stage.ask(user, service, b"x"))[0] != b"FORBIDDEN" for service in services}


async def _mmi(stage: Stage, user: str, *names: str, about: tuple[bytes, ...] = (b"",)) -> set[bool]:
    return {(await stage.ask(user, name, *about))[0] != b"403" for name in names}


async def _serve(stage: Stage, user: str, service: str) -> set[bool]:
    before = stage.broker.counters
    async with core.Context(security=security(user)) as context:
        with context.socket(core.DEALER) as socket:
            socket.connect(stage.where)
            socket.send_multipart([b"MDPW03\x01", service.encode(), b""])

            def grown(name: str) -> bool:
                return stage.broker.counters[name] > before[name]

            await eventually(lambda: grown("workers_registered") or grown("forbidden_serve"))
            return {grown("workers_registered")}


async def _see(stage: Stage, user: str) -> set[bool]:
    service = {"worker": "echo", "titanic": "titanic.request"}.get(user, "echo")
    found: list[str | None] = []

    async def note(request: mdp.Request) -> bytes:
        found.append(request.user)
        return b""

    if not (await _serve(stage, user, service)) == {True}:
        return {False}
    async with mdp.Worker(stage.where, service, handler=note, security=security(user), concurrency=64) as worker:
        await eventually(lambda: worker.connected)
        for _ in range(4):  # the other worker of the service takes its turns
            await stage.ask("client", service, b"other", b"x")
    return {set(found) == {"client"}}


async def _pass(stage: Stage, user: str) -> set[bool]:
    found: list[str | None] = []

    async def note(request: mdp.Request) -> bytes:
        found.append(request.user)
        return b""

    async with (
        mdp.Worker(stage.where, "echo", handler=note, security=security("worker"), concurrency=64) as worker,
        core.Context(security=security(user)) as context,
    ):
        await eventually(lambda: worker.connected)
        with context.socket(core.DEALER) as socket:
            socket.connect(stage.where)
            for number in range(4):
                socket.send_multipart([b"MDPC03\x01" + number.to_bytes(8, "big"), b"echo", msgpack.packb({"user": "somebody"}), b"x"])
                await socket.recv_multipart()
    return {"somebody" in found}


AT_BROKER: dict[str, Callable[[Stage, str], Awaitable[set[bool]]]] = {
    "call `echo`": lambda stage, user: _call(stage, user, "echo"),
    "call `titanic.request`, `titanic.reply`, `titanic.wait`, `titanic.close`": lambda stage, user: _call(
        stage, user, "titanic.request", "titanic.reply", "titanic.wait", "titanic.close"
    ),
    "call `titanic.look`, `titanic.batch`": lambda stage, user: _call(stage, user, "titanic.look", "titanic.batch"),
    "call any other service": lambda stage, user: _call(stage, user, "other"),
    "serve `echo`": lambda stage, user: _serve(stage, user, "echo"),
    "serve `titanic.request`": lambda stage, user: _serve(stage, user, "titanic.request"),
    "see users, serving": _see,
    "pass users on, calling `echo`": _pass,
    "`mmi.service echo`": lambda stage, user: _mmi(stage, user, "mmi.service", about=(b"echo",)),
    "`mmi.services`, `mmi.workers`, `mmi.stats`, `mmi.dlq`, `mmi.lending`": lambda stage, user: _mmi(
        stage, user, "mmi.services", "mmi.workers", "mmi.stats", "mmi.dlq", "mmi.lending"
    ),
    "`mmi.drain echo`, `mmi.enable echo`": lambda stage, user: _mmi(stage, user, "mmi.drain", "mmi.enable", about=(b"echo",)),
    "`mmi.dlq.drop`": lambda stage, user: _mmi(stage, user, "mmi.dlq.drop", about=(b"1",)),
    "`mmi.allowed`": lambda stage, user: _mmi(stage, user, "mmi.allowed", about=(b"call", b"client", b"echo")),
    "`mmi.protocol`": lambda stage, user: _mmi(stage, user, "mmi.protocol", about=(b"0.3",)),
}


async def test_the_table_of_the_broker() -> None:
    columns, rows = table("verb", "client")
    assert {row[0] for row in rows} == set(AT_BROKER)
    async with stage_with(RULES) as stage:
        for verb, *cells in rows:
            for column, cell in zip(columns, cells, strict=True):
                told = await AT_BROKER[verb](stage, column)
                assert (verb, column, told) == (verb, column, {cell == "yes"})
