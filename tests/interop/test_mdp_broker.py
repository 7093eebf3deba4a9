"""Our broker with clients and workers of other people: RFC 7 and RFC 18 on libzmq, each frame written out."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import TYPE_CHECKING

import pytest

import mdp
from tests.interop.majordomo import Client01, Client02, Worker01, Worker02, echo_worker, known
from tests.scenes.mdp_handlers import echo
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from tests.interop.ends import Foreign

BODIES = [[b"hello"], [b""], [b"one", b"", b"x" * 300, b"\x00" * 70_000, b""]]


# -- MDP/0.1


@pytest.mark.parametrize("body", BODIES, ids=["one frame", "an empty frame", "many frames"])
async def test_req_client_and_dealer_worker_of_rfc_7(body: list[bytes], where: str, foreign: Foreign) -> None:
    """MDP-06, MDP-07, MDP-09, MDP-40: exact frames of the four messages of one request."""
    worker, client = Worker01(foreign, where), Client01(foreign, where)
    await worker.ready(b"echo")
    asking = asyncio.create_task(client.request(b"echo", *body))
    address, found = await worker.work()
    assert found == body
    await worker.reply(address, *body[::-1])
    assert await asking == body[::-1]


async def test_a_pipelined_dealer_client_of_rfc_7(where: str, foreign: Foreign) -> None:
    """MDP-09, MDP-12, MDP-31: the client writes the empty frame itself; one worker answers in the order of the requests."""
    dealer = foreign("DEALER")
    dealer.connect(where)
    async with echo_worker(foreign, where):
        for number in range(200):
            await dealer.send(b"", b"MDPC01", b"echo", b"%d" % number)
        for number in range(200):
            assert await dealer.recv() == [b"", b"MDPC01", b"echo", b"%d" % number]


async def test_a_request_waits_for_its_first_worker(where: str, foreign: Foreign) -> None:
    """MDP-33: requests of 0.1 clients are queued until a worker of the service registers."""
    client, worker = Client01(foreign, where), Worker01(foreign, where)
    asking = asyncio.create_task(client.request(b"later", b"hello"))
    asked = Client01(foreign, where)
    assert await asked.request(b"mmi.service", b"later") == [b"404"]
    await worker.ready(b"later")
    address, body = await worker.work()
    await worker.reply(address, *body)
    assert await asking == [b"hello"]


async def test_mmi_for_a_req_client(where: str, foreign: Foreign) -> None:
    """MMI-01, MMI-03, MMI-04, MMI-05, MMI-06, MMI-08, MMI-10."""
    client, worker = Client01(foreign, where), Worker01(foreign, where)
    assert await client.request(b"mmi.service", b"echo") == [b"404"]
    await worker.ready(b"echo")
    await worker.say(b"\x04")
    await known(client, b"echo", b"200")
    assert await client.request(b"mmi.nonsense", b"echo") == [b"501"]
    assert await client.request(b"mmi.service", b"echo", b"echo") == [b"400"]
    await worker.say(b"\x05")
    await known(client, b"echo", b"404")


@pytest.mark.parametrize("dialect", [Worker01, Worker02], ids=["0.1", "0.2"])
async def test_unknown_workers_get_the_order_to_register(dialect: type[Worker01 | Worker02], where: str, foreign: Foreign) -> None:
    """MDP-26, MDP-27: HEARTBEAT and replies of workers the broker does not know are answered with DISCONNECT."""
    for command, rest in ((dialect.heartbeat, []), (b"\x03", [b"client", b"", b"body"])):
        worker = dialect(foreign, where)
        await worker.say(command, *rest)
        assert await worker.hear() == (worker.disconnect, [])


@pytest.mark.parametrize("dialect", [Worker01, Worker02], ids=["0.1", "0.2"])
async def test_ready_twice_and_reserved_names(dialect: type[Worker01 | Worker02], where: str, foreign: Foreign) -> None:
    """MDP-05, MDP-26, MMI-02."""
    twice = dialect(foreign, where)
    await twice.ready(b"echo")
    await twice.ready(b"echo")
    assert await twice.hear() == (twice.disconnect, [])
    for name in (b"mmi.x", b"", b"x" * 256, b"\xff", b"a\nb"):
        refused = dialect(foreign, where)
        await refused.ready(name)
        assert await refused.hear() == (refused.disconnect, [])


async def test_a_lost_workers_request_goes_to_another(where: str, foreign: Foreign) -> None:
    """MDP-37, MMI-08: connection loss; the second worker gets the request, the client one reply."""
    first, second, client = Worker01(foreign, where), Worker01(foreign, where), Client01(foreign, where)
    await first.ready(b"echo")
    asking = asyncio.create_task(client.request(b"echo", b"precious"))
    assert (await first.work())[1] == [b"precious"]
    await second.ready(b"echo")
    first.end.close()
    address, body = await second.work()
    assert body == [b"precious"]
    await second.reply(address, b"saved")
    assert await asking == [b"saved"]


@pytest.mark.parametrize("dialect", [Worker01, Worker02], ids=["0.1", "0.2"])
async def test_a_worker_that_leaves_gives_its_request_back(dialect: type[Worker01 | Worker02], where: str, foreign: Foreign) -> None:
    """MDP-23, MDP-26, MDP-37: DISCONNECT of a busy worker and of an idle one.

    Its HEARTBEATs until then are taken as such.
    """
    first, second, client = dialect(foreign, where), dialect(foreign, where), Client01(foreign, where)
    await first.ready(b"echo")
    await first.say(dialect.heartbeat)
    asking = asyncio.create_task(client.request(b"echo", b"precious"))
    assert (await first.work())[1] == [b"precious"]
    await first.say(dialect.heartbeat)
    await first.say(dialect.disconnect)
    await second.ready(b"echo")
    address, body = await second.work()
    assert body == [b"precious"]
    await (second.reply if isinstance(second, Worker01) else second.final)(address, b"saved")
    assert await asking == [b"saved"]
    await second.say(dialect.disconnect)
    await known(client, b"echo", b"404")


async def test_a_worker_cannot_answer_for_another(where: str, foreign: Foreign) -> None:
    """MDP-30: a REPLY with the address of a client whose request another worker holds is unexpected."""
    honest, rogue, client = Worker01(foreign, where), Worker01(foreign, where), Client01(foreign, where)
    await honest.ready(b"echo")
    asking = asyncio.create_task(client.request(b"echo", b"question"))
    address, _ = await honest.work()
    await rogue.ready(b"other")
    await rogue.reply(address, b"forged")
    assert await rogue.hear() == (rogue.disconnect, [])
    await honest.reply(address, b"true")
    assert await asking == [b"true"]


@pytest.mark.parametrize("dialect", [Worker01, Worker02], ids=["0.1", "0.2"])
async def test_heartbeats_and_the_last_word(dialect: type[Worker01 | Worker02], foreign: Foreign) -> None:
    """MDP-35, MDP-36, MDP-44: the broker beats in the worker's dialect and says DISCONNECT when it stops."""
    async with mdp.Broker(heartbeat_ms=20, liveness=500) as serving:
        worker = dialect(foreign, serving.bind("tcp://127.0.0.1:*"))
        await worker.ready(b"echo")
        for _ in range(3):
            assert await worker.end.recv() == [*worker.head, worker.heartbeat]
        serving.stop()
        assert await worker.hear() == (worker.disconnect, [])


async def test_a_silent_worker_is_forgotten(foreign: Foreign) -> None:
    """MDP-36, MDP-38: deleted without a word after liveness x interval, told DISCONNECT when it speaks again."""
    async with mdp.Broker(heartbeat_ms=20, liveness=2) as serving:
        where = serving.bind("tcp://127.0.0.1:*")
        worker = Worker01(foreign, where)
        await worker.ready(b"echo")
        await eventually(lambda: serving.counters["workers_expired"])
        assert await Client01(foreign, where).request(b"mmi.service", b"echo") == [b"404"]
        await worker.say(b"\x04")
        assert await worker.hear() == (worker.disconnect, [])


# -- MDP/0.2, and between dialects


async def test_client_and_worker_of_rfc_18(where: str, foreign: Foreign) -> None:
    """MDP-13, MDP-42: PARTIAL* FINAL in order, then nothing more."""
    worker, client = Worker02(foreign, where), Client02(foreign, where)
    await worker.ready(b"tail")
    for parts in (0, 1, 3):
        asking = asyncio.create_task(client.request(b"tail", b"file", b""))
        address, body = await worker.work()
        assert body == [b"file", b""]
        for part in range(parts):
            await worker.partial(address, b"%d" % part, b"")
        await worker.final(address, b"end", b"", b"")
        assert await asking == [*([b"%d" % part, b""] for part in range(parts)), [b"end", b"", b""]]


async def test_mmi_for_a_client_of_rfc_18(where: str, foreign: Foreign) -> None:
    """MMI-05: the answer is a FINAL."""
    client = Client02(foreign, where)
    assert await client.request(b"mmi.service", b"echo") == [[b"404"]]
    assert await client.request(b"mmi.nonsense", b"x") == [[b"501"]]


async def test_a_worker_of_rfc_7_serves_a_client_of_rfc_18(where: str, foreign: Foreign) -> None:
    """MDP-43: REPLY arrives as FINAL."""
    client = Client02(foreign, where)
    async with echo_worker(foreign, where):
        assert await client.request(b"echo", b"a", b"") == [[b"a", b""]]


async def test_a_worker_of_rfc_18_serves_a_client_of_rfc_7(where: str, foreign: Foreign) -> None:
    """MDP-43: its PARTIALs are kept and go before the FINAL in one REPLY."""
    worker, client = Worker02(foreign, where), Client01(foreign, where)
    await worker.ready(b"tail")
    asking = asyncio.create_task(client.request(b"tail", b"file"))
    address, _ = await worker.work()
    await worker.partial(address, b"1", b"")
    await worker.partial(address, b"2")
    await worker.final(address, b"3")
    assert await asking == [b"1", b"", b"2", b"3"]


async def test_our_worker_serves_clients_of_both_rfcs(where: str, foreign: Foreign) -> None:
    async with mdp.Worker(where, "echo", handler=echo) as worker:
        assert await Client01(foreign, where).request(b"echo", b"a", b"") == [b"a", b""]
        assert await Client02(foreign, where).request(b"echo", b"b") == [[b"b"]]
        assert worker.connected


async def test_workers_of_both_rfcs_serve_our_client(where: str, foreign: Foreign) -> None:
    """A 0.2 worker's PARTIALs arrive one by one in `stream`."""
    worker = Worker02(foreign, where)
    await worker.ready(b"tail")
    await known(Client01(foreign, where), b"tail")
    async with echo_worker(foreign, where), mdp.Client(where) as client:
        assert await client.request("echo", b"a", b"") == [b"a", b""]
        assert client.dialect == "0.3"

        async def serve() -> None:
            address, _ = await worker.work()
            await worker.partial(address, b"1")
            await worker.partial(address, b"2")
            await worker.final(address, b"3")

        serving = asyncio.create_task(serve())
        assert [part async for part in client.stream("tail", b"file")] == [[b"1"], [b"2"], [b"3"]]
        await serving


async def test_all_dialects_on_one_service(where: str, foreign: Foreign) -> None:
    """Three dialects of clients, two of workers, one service: every client is answered by every worker."""
    clients_01 = [Client01(foreign, where) for _ in range(3)]
    clients_02 = [Client02(foreign, where) for _ in range(3)]
    async with (
        echo_worker(foreign, where),
        mdp.Worker(where, "echo", handler=echo),
        mdp.Client(where) as client,
    ):
        for round_number in range(10):
            body = b"%d" % round_number
            found = await asyncio.gather(
                *(one.request(b"echo", body) for one in clients_01),
                *(client.request("echo", body) for _ in range(10)),
                *(one.request(b"echo", body) for one in clients_02),
            )
            assert found == [[body]] * 13 + [[[body]]] * 3


# -- the daemon


async def test_the_daemon_serves_foreign_peers_and_drains(foreign: Foreign) -> None:
    """`mdp broker` as an operator runs it: ready line, a request through it, SIGTERM, DISCONNECT to the worker, exit 0."""
    daemon = await asyncio.create_subprocess_exec(
        sys.executable, *("-m", "mdp", "broker", "--bind", "tcp://127.0.0.1:*", "--log-format", "json"), stderr=asyncio.subprocess.PIPE
    )
    try:
        assert daemon.stderr is not None
        async with asyncio.timeout(100):
            record = json.loads(await daemon.stderr.readline())
        worker, client = Worker01(foreign, record["endpoints"]), Client01(foreign, record["endpoints"])
        await worker.ready(b"echo")
        asking = asyncio.create_task(client.request(b"echo", b"hello"))
        address, body = await worker.work()
        await worker.reply(address, *body)
        assert await asking == [b"hello"]
        daemon.send_signal(signal.SIGTERM)
        assert await worker.hear() == (worker.disconnect, [])
        async with asyncio.timeout(100):
            await daemon.communicate()
        assert daemon.returncode == 0
    finally:
        if daemon.returncode is None:
            daemon.kill()
            await daemon.wait()
