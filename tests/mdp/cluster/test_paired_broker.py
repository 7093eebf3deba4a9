"""mdp.cluster.paired_broker: two brokers of which one serves, with workers and clients that follow."""

from __future__ import annotations

import asyncio

import pytest

import bstar
import core
import mdp
from bstar.machine.ballot import COUNTER_MAX, Ballot
from mdp.wire.commands import MDPC01, MDPW01, client_request, worker_ready
from mdp.wire.events import Failure, parse_at_client
from mdp.wire.failover import PAIR_SERVICE, ballot_text
from mdp.wire.options import encode_options
from tests.scenes.mdp_paired_brokers import QUICK_MS, Brokers, echo, until

NOBODY = "tcp://127.0.0.1:9"


async def test_clients_and_workers_find_the_active_one_whatever_the_order_of_endpoints() -> None:
    async with Brokers() as pair:
        await pair.settle()
        pair.fronts.reverse()
        await pair.worker()
        client = await pair.client()
        assert await client.request("echo", b"x", wait=True) == [b"x"]
        assert client.endpoint == pair.fronts[1]
        assert pair.brokers[1].pair_counters["refused"] >= 2


async def test_switchover_loses_no_request() -> None:
    """BST-36, BST-43: requests in flight are finished, new ones go to the other broker; no request is executed twice."""
    begun: list[bytes] = []
    gate = asyncio.Event()

    async def slow(request: mdp.Request) -> list[bytes]:
        begun.append(request.body[0])
        await gate.wait()
        return [*request.body]

    async with Brokers() as pair:
        await pair.settle()
        await pair.worker("slow", slow)
        client = await pair.client()
        early = [client.request("slow", b"%d" % n, wait=True) for n in range(5)]
        await until(lambda: len(begun) == 5)
        switching = asyncio.ensure_future(pair.pairs[0].switchover())
        await until(lambda: pair.brokers[0]._drained.awaited)
        late = [client.request("slow", b"%d" % n) for n in range(5, 10)]
        once = client.request("slow", b"10", once=True)
        await until(lambda: len(begun) == 6)
        gate.set()
        await switching
        assert await asyncio.gather(*early, once, *late) == [[b"%d" % n] for n in (0, 1, 2, 3, 4, 10, 5, 6, 7, 8, 9)]
        assert sorted(begun, key=int) == [b"%d" % n for n in range(11)]
        assert pair.serving() == [False, True]
        assert client.endpoint == pair.fronts[1]


async def test_the_clock_of_a_term_goes_on_after_a_moment_in_which_the_broker_must_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Brokers() as pair:
        await pair.settle()
        serves, refusals = pair.pairs[0].serves, iter(range(3))

        def serves_later() -> bool:
            """Refuse three times from when the request waits: from then on only clocks ask."""
            return (pair.brokers[0].stats["queued"] == 0 or next(refusals, None) is None) and serves()

        monkeypatch.setattr(pair.pairs[0], "serves", serves_later)
        client = pair.context.socket(core.DEALER, linger=0)
        client.connect(pair.fronts[0])
        options = encode_options({"wait": True, "deadline_ms": 100})
        await client.send_multipart(client_request("0.3", b"nobody", [b"x"], id=b"12345678", options=options))
        event = parse_at_client(await client.recv_multipart())
        assert isinstance(event, Failure)
        assert event.code == "DEADLINE_EXCEEDED"
        assert next(refusals, None) is None


async def test_a_switchover_under_load_has_nothing_done_twice() -> None:
    """BST-36: replies that wait for more to be sent together leave before the connections are closed."""
    done = 0

    async def count(request: mdp.Request) -> list[bytes]:
        nonlocal done
        done += 1
        await asyncio.sleep(0)
        return [*request.body]

    async with Brokers() as pair:
        await pair.settle()
        await pair.worker("count", count)
        client = await pair.client()
        await client.request("count", b"first", wait=True)
        for turn in range(6):
            active, passive = pair.pairs[turn % 2], pair.pairs[1 - turn % 2]
            asked = asyncio.gather(*(client.request("count", b"%d" % n) for n in range(1500)))
            while done < 1500 * turn + 20:
                await asyncio.sleep(0)
            await active.switchover()
            assert await asked == [[b"%d" % n] for n in range(1500)]
            while not passive.serving or active.status()["peer"]["state"] != "active":
                await asyncio.sleep(0)
        assert done == 6 * 1500 + 1


async def test_one_switchover_at_a_time_and_one_that_is_overtaken_ends() -> None:
    begun = asyncio.Event()

    async def endless(request: mdp.Request) -> list[bytes]:
        begun.set()
        await asyncio.get_running_loop().create_future()
        return []

    async with Brokers() as pair:
        await pair.settle()
        await pair.worker("endless", endless)
        client = await pair.client()
        reply = client.request("endless", b"x", wait=True)
        await begun.wait()
        switching = asyncio.ensure_future(pair.pairs[0].switchover(drain_s=3600.0))
        await until(lambda: pair.brokers[0]._drained.awaited)
        with pytest.raises(bstar.errors.NotActive, match="another switchover"):
            await pair.pairs[0].switchover()
        pair.clocks[0].ahead_s = 3600.0  # it stood still, and the other one takes over
        with pytest.raises(bstar.errors.NotActive):
            await switching
        assert not pair.pairs[0].serving
        reply.cancel()


async def test_switchover_that_is_not_possible_changes_nothing() -> None:
    """Requests kept back for the other broker are served after all."""
    gate, begun = asyncio.Event(), asyncio.Event()

    async def slow(request: mdp.Request) -> list[bytes]:
        begun.set()
        await gate.wait()
        return [*request.body]

    async with Brokers(heartbeat_ms=1000) as pair:
        await pair.settle()
        await pair.worker("slow", slow)
        client = await pair.client()
        first = client.request("slow", b"1", wait=True)
        await begun.wait()
        switching = asyncio.ensure_future(pair.pairs[0].switchover())
        await until(lambda: pair.brokers[0]._drained.awaited)
        second = client.request("slow", b"2")
        await pair.stop(1)
        await until(lambda: pair.pairs[0].status()["peer"]["state"] == "silent")
        gate.set()
        with pytest.raises(bstar.errors.NotActive):
            await switching
        assert [*await asyncio.gather(first, second)] == [[b"1"], [b"2"]]
        assert pair.pairs[0].serving


@pytest.mark.parametrize("witness", [False, True])
async def test_the_backup_takes_over_and_keeps_the_role(witness: bool) -> None:
    """BST-10, BST-11: what was in flight is answered by the other broker, and nothing fails for want of workers meanwhile."""
    async with Brokers(heartbeat_ms=QUICK_MS, witness=witness) as pair:
        await pair.settle()
        await pair.worker()
        client = await pair.client()
        await client.request("echo", b"1", wait=True)
        await pair.stop(0)
        assert await asyncio.gather(*(client.request("echo", b"%d" % n) for n in range(20))) == [[b"%d" % n] for n in range(20)]
        assert client.endpoint == pair.fronts[1]
        await pair.start(0)
        await until(lambda: pair.pairs[0].state is bstar.State.PASSIVE)
        other = await pair.client()
        assert await other.request("echo", b"2") == [b"2"]
        assert other.endpoint == pair.fronts[1]


async def test_a_worker_alone_is_no_vote() -> None:
    """BST-10, BST-40: the backup does not take over because a worker is looking for a broker."""
    async with Brokers(heartbeat_ms=QUICK_MS) as pair:
        await pair.settle()
        await pair.worker()
        await pair.has_workers(1)
        await pair.stop(0)
        await until(lambda: pair.pairs[1].status()["peer"]["state"] == "silent")
        before = pair.brokers[1].pair_counters["refused"]
        await until(lambda: pair.brokers[1].pair_counters["refused"] >= before + 3)
        assert pair.serving() == [False, False]
        client = await pair.client()
        assert await client.request("echo", b"x") == [b"x"]
        assert pair.serving() == [False, True]


class Slow:
    """A handler that answers once its gate is open."""

    def __init__(self) -> None:
        self.asked, self.gate = asyncio.Event(), asyncio.Event()

    async def answer(self, request: mdp.Request) -> list[bytes]:
        self.asked.set()
        await self.gate.wait()
        return [*request.body]


async def test_no_reply_leaves_a_broker_after_the_end_of_its_term() -> None:
    """BST-29, BST-41: the worker's answer comes after the process stood still, and before anything else in it has run."""
    slow = Slow()
    async with Brokers() as pair:
        await pair.settle()
        await pair.worker("slow", slow.answer)
        client = await pair.client()
        reply = client.request("slow", b"x", wait=True)
        await slow.asked.wait()
        answered = pair.brokers[0].stats["replies"]
        machine = pair.brokers[0].machine
        pair.clocks[0].ahead_s = 3600.0
        slow.gate.set()
        await until(lambda: pair.brokers[0].pair_counters["withheld"] > 0)
        assert machine.counters.replies == answered
        assert await reply == [b"x"]  # from the other one, to which the stalled one yields
        assert client.endpoint == pair.fronts[1]


async def test_what_arrives_in_a_moment_in_which_nothing_may_leave_is_processed_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that is renewed late: the worker says its reply once only."""
    slow = Slow()
    async with Brokers() as pair:
        await pair.settle()
        await pair.worker("slow", slow.answer)
        await pair.worker("echo", echo)
        client = await pair.client(timeout=60.0)
        reply = client.request("slow", b"x", wait=True)
        await slow.asked.wait()
        broker, ballot = pair.brokers[0], pair.pairs[0].ballot()
        monkeypatch.setattr(pair.pairs[0], "serves", lambda: False)
        slow.gate.set()
        others = [client.request("echo", b"%d" % number) for number in range(20)]
        await until(lambda: broker.pair_counters["held_back"] + broker.pair_counters["withheld"] >= 2)
        assert not reply.done()
        monkeypatch.undo()
        assert await reply == [b"x"]
        assert await asyncio.gather(*others) == [[b"%d" % number] for number in range(20)]
        assert (pair.pairs[0].ballot(), broker.pair_counters["withheld"]) == (ballot, 0)
        assert client.endpoint == pair.fronts[0]


async def test_more_than_may_be_kept_meanwhile_is_dropped_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dropped request is unknown, so the broker takes it when its client sends it again."""
    async with Brokers() as pair:
        await pair.settle()
        await pair.worker()
        client = await pair.client(timeout=0.3, attempts=200)
        assert await client.request("echo", b"first", wait=True) == [b"first"]
        broker, body = pair.brokers[0], bytes(4000)
        with monkeypatch.context() as moment:
            moment.setattr("mdp.cluster.paired_broker.WITHHELD_MAX_BYTES", 2000)
            moment.setattr(pair.pairs[0], "serves", lambda: False)
            reply = client.request("echo", body)
            await until(lambda: broker.pair_counters["withheld"] > 0)
        assert await reply == [body]


async def named(asker: core.Socket, *ballots: Ballot) -> list[list[bytes]]:
    """Name ballots to a broker, one after the other, and return what it answers."""
    answers = []
    for ballot in ballots:
        await asker.send_multipart(client_request("0.1", PAIR_SERVICE, [ballot_text(ballot)]))
        answers.append((await asker.recv_multipart())[3:])
    return answers


async def test_a_client_cannot_end_a_term_by_claiming_ballots(caplog: pytest.LogCaptureFixture) -> None:
    """BST-45: whatever it names and however often, nothing fails over; peer and witness are asked once a heartbeat at most."""
    for witness in (False, True):
        caplog.clear()
        async with Brokers(witness=witness) as pair, core.Context() as context, context.socket(core.DEALER, linger=0) as asker:
            await pair.settle()
            await pair.worker()
            client = await pair.client()
            await client.request("echo", b"x", wait=True)
            served, changes = pair.pairs[0].ballot(), pair.pairs[0].status()["changes"]
            asker.connect(pair.fronts[0])
            assert await named(asker, served) == [[b"200", ballot_text(served)]]
            lies = [Ballot(served.counter + n, 1 + n) for n in range(1, 51)] + [Ballot(COUNTER_MAX - n, 7) for n in range(25)]
            for answer in await named(asker, *lies):
                assert answer[0] == b"300"
                assert answer[1] == ballot_text(served)
            assert pair.pairs[0].ballot() == served
            assert [one["event"] for one in pair.pairs[0].status()["changes"]] == [one["event"] for one in changes]
            assert pair.pairs[0].counters["ballots_asked_about"] <= 3
            assert pair.brokers[0].pair_counters["ballots_named"] == pair.pairs[0].counters["ballots_named"] == 75
            assert pair.brokers[0].pair_counters["peers_let_go"] == 0
            assert await client.request("echo", b"y") == [b"y"]
            audit = [one for one in caplog.records if one.name == "mdp.audit"]
            assert len(audit) == 75
            assert vars(audit[0])["named"] == str(lies[0])
            assert pair.pairs[1].machine.member.counter == served.counter


async def test_a_broker_whose_peer_confirms_the_ballot_of_a_client_steps_down() -> None:
    """BST-33, BST-45: the proof is the peer's word."""
    async with Brokers() as pair:
        await pair.settle()
        served = pair.pairs[0].ballot()
        backup = pair.pairs[1].machine
        backup.member = backup.member._replace(counter=served.counter + 3)  # a claim of it that came to nothing
        pair.pairs[1]._announce()
        await until(lambda: pair.pairs[0].machine.member.counter == served.counter + 3)
        async with core.Context() as context, context.socket(core.DEALER, linger=0) as asker:
            asker.connect(pair.fronts[0])
            (answer,) = await named(asker, Ballot(served.counter + 3, 1))
            assert answer[0] == b"300"
            # Its peer is present and idle: it may claim again, with a ballot above all known ones.
            await until(lambda: pair.pairs[0].ballot().counter > served.counter + 3)


@pytest.mark.parametrize("witness", [False, True])
async def test_clients_and_workers_of_a_pair_that_lost_its_ballots_come_back(witness: bool) -> None:
    """BST-33, BST-45: they refuse the lower ballot until peer or witness has denied theirs."""
    async with Brokers(witness=witness) as pair:
        await pair.settle()
        worker = await pair.worker()
        client = await pair.client()
        await client.request("echo", b"x", wait=True)
        served = pair.pairs[0].ballot()
        for search in (client._engine.search, worker._session.search):
            search.ballot = Ballot(served.counter + 100_000, 1)
        pair.brokers[0]._end_term()  # cut, and back they come
        pair.brokers[0]._begin_term()
        assert await client.request("echo", b"y", wait=True) == [b"y"]
        assert client._engine.search.ballot == worker._session.search.ballot == pair.pairs[0].ballot() == served


async def test_a_broker_that_has_stopped_takes_over_no_more() -> None:
    """Whatever the pair says, it serves no peer and sets no timer."""
    async with Brokers() as pair:
        await pair.settle()
        broker = pair.brokers[0]
        machine = broker.machine
        broker.stop()
        broker._end_term()
        broker._begin_term()
        broker._resume()
        assert broker.machine is machine
        assert broker.wakes_at is None
        assert await broker._drain_requests(3600.0)


async def test_a_client_does_not_connect_to_a_broker_under_a_lower_ballot_whose_peer_says_nothing() -> None:
    """BST-33, BST-42: no answer of a deposed master can reach it."""
    async with Brokers(heartbeat_ms=QUICK_MS) as pair:
        await pair.settle()
        await pair.worker()
        client = await pair.client()
        await client.request("echo", b"x", wait=True)
        await pair.stop(1)
        await until(lambda: pair.pairs[0].status()["peer"]["state"] == "silent")
        client._engine.search.ballot = Ballot(pair.pairs[0].ballot().counter + 5, 1)
        pair.brokers[0]._end_term()
        pair.brokers[0]._begin_term()
        reply = client.request("echo", b"y", wait=True)
        await until(lambda: pair.pairs[0].counters["ballots_asked_about"] >= 3)
        assert not reply.done()
        reply.cancel()


async def test_a_foreign_client_of_the_passive_broker_gets_no_answer_and_a_foreign_worker_is_disconnected() -> None:
    """BST-03, MDP-38, BST-40."""
    async with Brokers() as pair:
        await pair.settle()
        left: list[str] = []
        async with core.Context() as context, context.socket(core.DEALER, linger=0) as peer:
            peer.connect(pair.fronts[1])
            await peer.send_multipart(worker_ready("0.1", b"echo"))
            assert await peer.recv_multipart() == [b"", MDPW01, b"\x05"]
            peer.set_receiver(lambda batch: left.append("answer"), on_peer=lambda _, joined: None if joined else left.append("cut"))
            await peer.send_multipart(client_request("0.1", b"echo", [b"x"]))
            await until(lambda: left == ["cut"])
            await peer.send_multipart(client_request("0.2", b"echo", [b"x"]))
            await until(lambda: left == ["cut", "cut"])
            assert pair.brokers[1].pair_counters["refused"] == 2


@pytest.mark.parametrize(
    "frames",
    [
        [b""],
        [b"", MDPC01],
        [b"", MDPC01, b"mmi.pair"],
        [b"", MDPC01, b"mmi.pair", b"9.1"],
        [b"", MDPC01, b"mmi.pair", b"\xff" * 40, b""],
        [b"MDPC03\x01"],
        [b"MDPC03\x01" + bytes(8), b"echo", b"\xc1", b"x"],
        [b"MDPC02", b"\x07", b"x"],
        [b"\xff" * 300],
        [b"", b"MDPW01"],
    ],
)
async def test_garbage_at_a_passive_broker_changes_nothing(frames: list[bytes]) -> None:
    async with Brokers() as pair:
        await pair.settle()
        async with core.Context() as context, context.socket(core.DEALER, linger=0) as peer:
            peer.connect(pair.fronts[1])
            await peer.send_multipart(frames)
        async with core.Context() as context, context.socket(core.DEALER, linger=0) as peer:
            peer.connect(pair.fronts[1])
            await peer.send_multipart(client_request("0.1", b"mmi.protocol", [b"0.3"]))
            answers = [await peer.recv_multipart()]
            while answers[-1][1] == MDPW01:
                answers.append(await peer.recv_multipart())
        assert answers[-1][2] in (b"mmi.protocol", b"mmi.pair")
        assert pair.serving() == [True, False]


@pytest.mark.parametrize("dialect", ["0.1", "0.2", "0.3"])
async def test_a_given_dialect_finds_the_other_broker_too(dialect: str) -> None:
    """Without a query there are no ballots, but the passive broker keeps no peer."""
    async with Brokers() as pair:
        await pair.settle()
        await pair.worker()
        await pair.pairs[0].switchover()
        await until(lambda: pair.pairs[1].serving)
        client = await pair.client(dialect=dialect, timeout=0.3, attempts=30)
        assert await client.request("echo", b"x", wait=True) == [b"x"]


async def test_a_stopping_member_hands_over_and_a_lone_one_drains() -> None:
    """BST-16."""
    async with Brokers(heartbeat_ms=QUICK_MS) as pair:
        await pair.settle()
        await pair.worker()
        client = await pair.client()
        assert await client.request("echo", b"1", wait=True) == [b"1"]
        assert await pair.brokers[0].drain(5.0)
        await pair.stop(0)
        assert await client.request("echo", b"2") == [b"2"]
        assert pair.pairs[1].serving
        await until(lambda: pair.pairs[1].status()["peer"]["state"] == "silent")
        assert await pair.brokers[1].drain(5.0)


async def test_numbers_of_a_pair_and_its_events() -> None:
    told: list[str] = []
    async with Brokers() as pair:
        pair.pairs[1].on_event(lambda event: told.append(event["event"]))
        await pair.settle()
        numbers = pair.brokers[0].metrics()
        assert numbers["bstar_serving"] == numbers["bstar_active"] == 1
        assert (numbers["bstar_safe"], numbers["bstar_became_active_total"]) == (0, 1)
        assert "workers" in numbers
        assert all(isinstance(number, int | float) for number in numbers.values())
        await pair.pairs[0].switchover()
        await until(lambda: pair.pairs[1].serving)
        assert told == ["passive", "active"]
        assert [(change["event"], change["reason"]) for change in pair.pairs[0].status()["changes"]] == [
            ("active", ""),
            ("passive", "it handed over"),
        ]


async def test_a_broker_that_comes_to_a_pair_which_serves_already_serves_too() -> None:
    async with (
        bstar.Pair(bstar.PRIMARY, local="tcp://127.0.0.1:*", remote=NOBODY, heartbeat_ms=1000) as pair,
        core.Context() as context,
    ):
        await until(lambda: pair.verdict(bstar.machine.ballot.NO_BALLOT) is bstar.Verdict.ACCEPT)
        async with mdp.PairedBroker(pair, context=context) as broker:
            endpoint = broker.bind("tcp://127.0.0.1:*")
            async with mdp.Worker(endpoint, "echo", handler=echo), mdp.Client(endpoint) as client:
                assert await client.request("echo", b"x", wait=True) == [b"x"]


async def test_the_error_of_a_client_that_reaches_only_the_passive_broker_says_so() -> None:
    async with Brokers() as pair:
        await pair.settle()
        async with mdp.Client(pair.fronts[1], timeout=2.0, attempts=1) as client:
            with pytest.raises(mdp.Unreachable, match="passive broker of its pair"):
                await client.request("echo", b"x")


async def test_the_lock_step_client_follows_a_switchover_too() -> None:
    """A pool of connections in MDP/0.1, cut at once; the dialect is asked for, so ballots count."""
    async with Brokers() as pair:
        await pair.settle()
        worker = await pair.worker(dialect="0.1", reconnect_ms=100)
        client = await pair.client(dialect="0.1", timeout=1.0, attempts=20)
        assert await client.request("echo", b"1") == [b"1"]
        await pair.pairs[0].switchover()
        assert await client.request("echo", b"2") == [b"2"]
        await until(lambda: worker.connected)
