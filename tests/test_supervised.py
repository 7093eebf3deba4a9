"""A fault injected into each thing the supervisor runs.

It is counted, and what it belongs to goes on or says why it does not.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

import core
import core.security.mechanisms
import core.security.zap_client
import freelance
import mdp
import pirate
import titanic
from core.daemon.http import serve_page
from core.daemon.metrics import WebLimits, figures_page
from core.runtime import supervision
from core.runtime.loop_thread import LoopThread
from core.runtime.supervision import Supervisor
from core.security.authenticator import ZapHandler, curve_keypair
from freelance.names.server import NameServer
from tests.scenes.bstar_sockets import PATIENT
from tests.scenes.bstar_sockets import Scene as StarScene
from tests.scenes.fault_injection import Broken, Saboteur
from tests.scenes.mdp_handlers import echo
from tests.scenes.peering_brokers import Scene as ClusterScene
from tests.scenes.peering_brokers import ask
from tests.scenes.titanic_pair import JOURNAL, Two
from tests.scenes.waiting import eventually
from titanic.mirror.replica_server import Mirror
from titanic.store.index.limits import DispatchOptions, Limits

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

Works: TypeAlias = Callable[[], Awaitable[None]]
Scene: TypeAlias = Callable[[Path], AbstractAsyncContextManager[Works]]

ROOT = Path(__file__).resolve().parents[1]
OF_A_STORE = "dispatch, dispatch clock, batch, probe, permission, request, held requests, expiry clock, wait clock"
STARTS = frozenset({"task", "thread", "timer", "later", "each", "call", "guarded"})


def supervised_names() -> dict[str, str]:
    """Return the names under which the packages have something run, and the file each stands in."""
    found: dict[str, str] = {}
    for package in ("core", "mdp", "titanic", "bstar", "freelance", "pirate", "peering"):
        for path in (ROOT / package).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            constants = {
                ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target): node.value.value
                for node in tree.body
                if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant)
            }
            for node in ast.walk(tree):
                if not isinstance(node, ast.Call):
                    continue
                # The method is called with the name, or handed on together with it.
                for method, name in pairwise([node.func, *node.args]):
                    owner, _, verb = ast.unparse(method).rpartition(".")
                    if verb in STARTS and "supervis" in owner:
                        text = constants.get(ast.unparse(name)) if isinstance(name, ast.Name) else getattr(name, "value", None)
                        assert isinstance(text, str), f"{path}:{node.lineno}: a name is a string in the code"
                        found[text] = path.relative_to(ROOT).as_posix()
    return found


@asynccontextmanager
async def sockets(place: Path) -> AsyncIterator[Works]:
    """Two connected sockets with heartbeats and large frames, and one socket that leaves with a message unsent."""
    async with core.Context() as context:
        server = context.socket(core.REP, heartbeat_ivl=20)
        server.bind(f"ipc://{place}/s")
        client = context.socket(core.REQ, heartbeat_ivl=20, reconnect_ivl=1, req_relaxed=1, req_correlate=1)
        client.connect(server.last_endpoint)
        leaving = context.socket(core.PUSH, linger=1)
        leaving.connect(f"ipc://{place}/nobody")
        leaving.send(b"unsent")
        leaving.close()
        pull, push = context.socket(core.PULL), context.socket(core.PUSH)
        pull.bind(f"ipc://{place}/p")
        push.connect(pull.last_endpoint)

        async def works() -> None:
            await asyncio.gather(*(push.send(bytes(6000)) for _ in range(30)))  # in one read, or two
            assert [await pull.recv() for _ in range(30)] == [bytes(6000)] * 30
            while True:  # one connection ends with the fault of its timer, and takes a question or an answer with it
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.5):
                        await client.send(bytes(900_000))
                        assert await server.recv() == bytes(900_000)
                        await server.send(b"yes")
                        assert await client.recv() == b"yes"
                        return
                with suppress(core.ZMQError, TimeoutError):
                    async with asyncio.timeout(0.01):
                        await server.recv()
                        await server.send(b"late")

        yield works


@asynccontextmanager
async def secured(place: Path) -> AsyncIterator[Works]:
    public, secret = curve_keypair()
    guest = curve_keypair()
    async with (
        core.Context(security=core.Curve(secret_key=secret, keys={guest[0]: "ann"})) as here,
        core.Context(security=core.Curve(secret_key=guest[1], server_key=public)) as there,
    ):
        server = here.socket(core.ROUTER)
        server.bind(f"ipc://{place}/s")

        async def works() -> None:
            while True:
                async with there.socket(core.DEALER, reconnect_ivl=1, linger=0) as client:
                    client.connect(server.last_endpoint)
                    await client.send(b"hello")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(2):
                            assert (await server.recv_multipart())[1:] == [b"hello"]
                            return

        async with there.socket(core.DEALER, reconnect_ivl=1, linger=0) as steady:
            steady.connect(server.last_endpoint)
            yield works


@asynccontextmanager
async def asked_of_a_handler(place: Path) -> AsyncIterator[Works]:
    """An authenticator behind a ZAP socket: a question it fails at is refused, the next one is answered."""
    public, secret = curve_keypair()
    guest = curve_keypair()
    async with core.Context() as context, ZapHandler(context, core.Authenticator(keys={guest[0]: "ann"})):
        server = context.socket(core.ROUTER, curve_server=1, curve_secretkey=secret, handshake_ivl=200)
        server.bind(f"ipc://{place}/s")

        async def works() -> None:
            keys = {"curve_secretkey": guest[1], "curve_publickey": guest[0], "curve_serverkey": public}
            async with context.socket(core.DEALER, reconnect_ivl=1, linger=0, **keys) as client:
                client.connect(server.last_endpoint)
                await client.send(b"hello")
                assert (await server.recv_multipart())[1:] == [b"hello"]

        yield works


@asynccontextmanager
async def majordomo(place: Path) -> AsyncIterator[Works]:
    async with mdp.Broker(heartbeat_ms=50) as broker:
        endpoint = broker.bind(f"ipc://{place}/b")
        options: dict[str, Any] = {"heartbeat_ms": 50, "reconnect_ms": 10, "reconnect_max_ms": 50}
        async with (
            mdp.Worker(endpoint, "echo", handler=echo, blocked_s=0.2, **options),
            mdp.Client(endpoint, timeout=0.3, attempts=50) as client,
        ):

            async def works() -> None:
                assert await client.request("echo", b"x", wait=True) == [b"x"]

            yield works


@asynccontextmanager
async def stored(place: Path) -> AsyncIterator[Works]:
    dispatch = DispatchOptions(retry_s=0.02, retry_max_s=0.1, probe_s=0.02, probe_max_s=0.1)
    moments = count()  # half of a pair may not answer in some of them
    async with mdp.Broker() as broker:
        endpoint = broker.bind(f"ipc://{place}/b")
        store = titanic.Store(titanic.RealDisk(place / "store"), JOURNAL, Limits(retain_ms=2000))
        async with (
            titanic.Service(endpoint, store, titanic.ServiceOptions(dispatch=dispatch), guard=lambda: next(moments) % 5 != 4),
            mdp.Worker(endpoint, "echo", handler=echo),
            titanic.Client(endpoint, timeout=0.5, attempts=20) as client,
        ):

            async def works() -> None:
                ticket = await client.submit("echo", b"x", ttl=60.0)
                assert await ticket.result(100) == [b"x"]
                assert (await client.ask(b"titanic.batch", b"abort", b"nothing"))[0] in {b"200", b"500"}
                lonely = await client.submit("nobody", b"x", ttl=0.05)
                with pytest.raises((titanic.Expired, titanic.Pending, titanic.UnknownRequest)):
                    await lonely.result(0.2)

            yield works


@asynccontextmanager
async def two_servers(place: Path) -> AsyncIterator[Works]:
    beats = 0

    def beat() -> None:
        nonlocal beats
        beats += 1

    async with StarScene(heartbeat_ms=400) as scene, scene.client() as client:
        scene.pairs[0].timer(0.01, beat)

        async def works() -> None:
            before = beats
            assert await client.request(b"x", patience=PATIENT) == [b"x"]
            await eventually(lambda: beats > before)

        yield works


@asynccontextmanager
async def names(place: Path) -> AsyncIterator[Works]:
    ends = [f"ipc://{place}/{n}" for n in (1, 2)]
    async with NameServer(ends[0], peers=[ends[1]], sync_s=0.05), NameServer(ends[1], peers=[ends[0]], sync_s=0.05):
        async with freelance.Names([ends[0]], timeout=100) as client:

            async def works() -> None:
                await client.set("shop", connect=["tcp://a:1"], ttl=0.1)
                await client.set("bank", connect=["tcp://a:1"])
                async with freelance.Names([ends[1]], timeout=100) as asking:
                    while await asking.names() != ["bank"]:
                        await asyncio.sleep(0.01)

            yield works


@asynccontextmanager
async def full_queue(place: Path) -> AsyncIterator[Works]:
    async with core.Context() as context, context.socket(core.ROUTER, rcvhwm=1) as server:
        server.bind(f"ipc://{place}/s")
        async with freelance.Client([server.last_endpoint], model=2, timeout=100, socket_options={"sndhwm": 2}) as client:

            async def works() -> None:
                before, asked = client.counters["send_blocked"], list[asyncio.Future[list[bytes]]]()
                while client.counters["send_blocked"] == before:
                    if len(asked) < 50:
                        asked.append(asyncio.ensure_future(client.request(bytes(65536))))
                    await asyncio.sleep(0)
                for _ in asked:
                    await server.send_multipart(await server.recv_multipart())
                assert await asyncio.gather(*asked) == [[bytes(65536)]] * len(asked)

            yield works


@asynccontextmanager
async def pirates(place: Path) -> AsyncIterator[Works]:
    async with (
        pirate.Queue(f"ipc://{place}/f", f"ipc://{place}/b", heartbeat_ms=20) as queue,
        pirate.Worker(queue.backend, lambda body: body, heartbeat_ms=20),
        pirate.Client(queue.frontend, timeout=0.3, attempts=50) as client,
    ):

        async def works() -> None:
            assert await client.request(b"x") == [b"x"]

        yield works


@asynccontextmanager
async def clouds(place: Path) -> AsyncIterator[Works]:
    async with core.Context() as context, ClusterScene(context, place) as scene:
        (one,) = await scene.mesh("one")
        scene.worker(one)

        async def works() -> None:
            async with scene.client(one) as client:
                assert await ask(client, b"x") == [b"one", b"x"]

        yield works


@asynccontextmanager
async def pirate_server(place: Path) -> AsyncIterator[Works]:
    """Clients that have been silent are forgotten, also after the clock that does it has failed once."""

    async def answer(client: pirate.Conversation, body: list[bytes]) -> None:
        client.reply(*body)

    async with pirate.AsyncServer(f"ipc://{place}/s", answer, ttl=0.02) as server, core.Context() as context:

        async def works() -> None:
            before = server.counters["client_silent"]
            async with context.socket(core.DEALER, linger=0) as client:
                client.connect(server.endpoint)
                await client.send(b"x")
                assert await client.recv_multipart() == [b"x"]
                await eventually(lambda: server.counters["client_silent"] > before)

        yield works


@asynccontextmanager
async def two_stores(place: Path) -> AsyncIterator[Works]:
    async with Two(place) as two:
        await two.start(0)
        await two.start(1)

        async def works() -> None:
            await two.settled()
            assert await two.answered(await two.submit("x")) == ["x"]

        yield works


@asynccontextmanager
async def page(place: Path) -> AsyncIterator[Works]:
    """A connection that says nothing is ended, also after the clock that ends it has failed once."""
    async with serve_page(("127.0.0.1", 0), figures_page("a daemon", "thing", dict), WebLimits(request_s=0.05)) as port:

        async def works() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                with suppress(ConnectionError):
                    assert await reader.read() == b""
            finally:
                writer.close()

        yield works


SOCKET_TIMERS = ("connection timer", "large frames clock")
SCENES: dict[str, tuple[Scene, frozenset[str]]] = {
    "sockets": (
        sockets,
        frozenset(f"core {each}" for each in ("listener", "connector", "writing", "reading", "linger", *SOCKET_TIMERS)),
    ),
    "secured": (
        secured,
        frozenset(("core handshake", "core handshake clock", "core authentication", "core revocation", "core cookie clock")),
    ),
    "asked of a handler": (asked_of_a_handler, frozenset(("core authenticator",))),
    "majordomo": (
        majordomo,
        frozenset(("mdp broker clock", "mdp client clock", "mdp worker clock", "mdp probe", "mdp watchdog", "mdp watchdog clock")),
    ),
    "stored": (stored, frozenset(f"titanic {name}" for name in OF_A_STORE.split(", "))),
    "two servers": (two_servers, frozenset(("bstar pair clock", "bstar client clock", "bstar beat"))),
    "names": (names, frozenset(("freelance names clock", "freelance names peer", "freelance client clock"))),
    "full queue": (full_queue, frozenset(("freelance full queue",))),
    "pirates": (
        pirates,
        frozenset(("pirate queue clock", "pirate queue frontend", "pirate worker clock", "pirate client clock")),
    ),
    "clouds": (clouds, frozenset(("peering clock", "peering frontend"))),
    "pirate server": (pirate_server, frozenset(("pirate server clock",))),
    "two stores": (two_stores, frozenset(("titanic mirror line", "titanic pulse clock", "titanic votes"))),
    "page": (page, frozenset(("http visit",))),
}


@pytest.mark.faults
@pytest.mark.parametrize("scene", SCENES)
async def test_what_runs_goes_on_after_a_fault(scene: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core.security.mechanisms, "COOKIE_LIFETIME_S", 0.05)
    monkeypatch.setattr(core.security.zap_client, "RECHECK_S", 0.01)
    play, names = SCENES[scene]
    saboteur = Saboteur(names)
    with supervision.scope(Supervisor(saboteur)) as supervisor:
        async with play(tmp_path) as works:
            async with asyncio.timeout(100):
                await works()
                while saboteur.left:
                    await works()
                    await asyncio.sleep(0.001)
                await works()
            await eventually(lambda: not supervisor.troubles)
    assert {name: supervisor.faults.get(name) for name in names} == dict.fromkeys(names, 1)


# What follows where nothing can go on: its owner raises, so that a daemon ends, and another one or a restart takes over.


@pytest.mark.faults
@pytest.mark.parametrize("name", ["titanic pair", "titanic turns"])
async def test_one_of_two_stores_ends_with_a_fault_of_its_own(name: str, tmp_path: Path) -> None:
    with supervision.scope(Supervisor(Saboteur([name]))) as supervisor:
        async with Two(tmp_path) as two:
            one = await two.start(0)
            with pytest.raises(Broken, match=name):
                await one.serve_forever()
        assert supervisor.faults == {name: 1}


@pytest.mark.faults
async def test_a_mirror_ends_with_a_fault_of_its_thread(tmp_path: Path) -> None:
    with supervision.scope(Supervisor(Saboteur(["titanic mirror"]))) as supervisor:
        async with Mirror(titanic.RealDisk(tmp_path / "copy")) as mirror:
            with pytest.raises(titanic.Wounded, match="Broken"):
                await mirror.until_failed()
        assert supervisor.troubles


@pytest.mark.faults
async def test_a_store_that_cannot_be_taken_to_its_broker_is_not_entered(tmp_path: Path) -> None:
    with supervision.scope(Supervisor(Saboteur(["titanic services"]))):
        with pytest.raises(Broken):
            async with titanic.Service(f"ipc://{tmp_path}/b", titanic.Store(None, None)):
                pass


@pytest.mark.faults
async def test_a_pair_ends_with_a_fault_in_what_it_calls() -> None:
    with supervision.scope(Supervisor(Saboteur(["bstar callback"]))):
        async with StarScene(heartbeat_ms=100) as scene:
            ends = [asyncio.ensure_future(pair.serve_forever()) for pair in scene.pairs]
            (ended, *_), pending = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            assert isinstance(ended.exception(), Broken)
            for one in pending:
                one.cancel()


@pytest.mark.faults
def test_nothing_waits_for_a_loop_whose_thread_has_failed() -> None:
    class Ended(Exception):
        """The loop has ended."""

    async def work() -> None:
        await asyncio.sleep(0)

    with supervision.scope(Supervisor(Saboteur(["core loop thread"]))):
        thread = LoopThread("a thread", Ended)
        with pytest.raises((Ended, CancelledError)):
            while True:  # what is handed over just then is done, or refused
                thread.run(work())
        thread.end()


@pytest.mark.faults
async def test_connections_are_accepted_after_a_fault_with_one(tmp_path: Path) -> None:
    if not isinstance(asyncio.get_running_loop(), asyncio.SelectorEventLoop):
        names: list[str] = []  # uvloop accepts by itself
    else:
        names = ["core accept"]
    with supervision.scope(Supervisor(Saboteur(names))) as supervisor:
        async with core.Context() as context:
            server, client = context.socket(core.PULL), context.socket(core.PUSH, reconnect_ivl=1)
            server.bind(f"ipc://{tmp_path}/s")
            client.connect(server.last_endpoint)
            await client.send(b"x")
            assert await server.recv() == b"x"
    assert supervisor.faults == dict.fromkeys(names, 1)


# Names whose faults need a scene of their own: where that is, or why there is none.
ELSEWHERE: dict[str, str] = {
    **dict.fromkeys(("titanic writer", "titanic acknowledgement"), "tests/titanic/store/test_faults.py"),
    **dict.fromkeys(("titanic reader", "titanic upkeep"), "tests/titanic/store/test_faults.py"),
    **dict.fromkeys(("titanic pair", "titanic turns", "titanic mirror", "titanic services"), "tests/test_supervised.py"),
    **dict.fromkeys(("bstar callback", "core loop thread", "core accept"), "tests/test_supervised.py"),
    **dict.fromkeys(("core accept clock", "daemon drain", "daemon reload", "daemon watchdog"), "tests/core/daemon/test_injected_faults.py"),
    **dict.fromkeys(("bstar switchover", "bstar witness ballot"), "tests/bstar/test_injected_faults.py"),
    **dict.fromkeys(("mdp broker backlog clock", "mdp broker memory clock"), "tests/mdp/test_injected_faults.py"),
    **dict.fromkeys(("mdp handler thread", "mdp worker overdue", "mdp event log", "leftovers"), "tests/mdp/test_injected_faults.py"),
    **dict.fromkeys(("mdp lending clock", "mdp pair clock", "mdp broker release clock"), "tests/mdp/test_injected_faults.py"),
    **dict.fromkeys(("mdp dispatch client", "mdp dispatch exchange"), "tests/mdp/spark/test_injected_faults.py"),
    **dict.fromkeys(("mdp dispatch loop", "mdp dispatch rest", "mdp progress"), "tests/mdp/spark/test_injected_faults.py"),
    "titanic other stores": "tests/titanic/store/test_other_stores.py",
    "bstar client callback": "tests/bstar/test_pair.py",
    "core name lookup": "tests/core/net/names/test_lookups.py",
    **dict.fromkeys(("core receiver", "core peer watcher"), "tests/core/sockets/test_event_callbacks.py"),
    "core socket file": "tests/core/net/test_listener.py",
    "pirate client check": "tests/pirate/test_client.py",
    "mdp dispatch keys": "tests/mdp/spark/flow/test_replayed_window.py",
    "core context end": "tests/core/sockets/test_event_callbacks.py",
    "core event callback": "tests/core/sockets/test_event_callbacks.py",
    "bstar event callback": "tests/bstar/test_pair_stops.py",
    "core connector address": "tests/core/net/test_addresses.py",
    "mdp front question": "tests/mdp/shards/test_front.py",
    "mdp front heartbeat": "tests/test_slow_lines.py",
    "mdp front clock": "tests/mdp/shards/test_backpressure.py",
    "mdp shard clock": "tests/mdp/commands/test_shards.py",
    "child process": "tests/core/processes/test_children.py",
    "mdp testing delay": "tests/mdp/testing/test_local_broker.py",
    "mdp worker progress": "tests/mdp/worker/replies/test_progress_reports.py",
    "mdp spark interrupt": "tests/mdp/spark/rows/test_interrupting.py",
    "titanic dispatch retry": "tests/titanic/spark/test_stored_window.py",
    **dict.fromkeys(("titanic commit", "titanic retry", "titanic stage expiry"), "tests/titanic/test_injected_faults.py"),
}


def test_a_fault_is_injected_under_every_name() -> None:
    names, here = supervised_names(), {name for _, names in SCENES.values() for name in names}
    assert sorted(names.keys() - here - ELSEWHERE.keys()) == []
    assert sorted((here | ELSEWHERE.keys()) - names.keys()) == []
    assert [name for name, path in ELSEWHERE.items() if f'"{name}"' not in (ROOT / path).read_text(encoding="utf-8")] == []
