"""bstar.reactor: what a server does with messages, answers, votes and time."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

import pytest

import bstar
from bstar.errors import DualActive, Misconfigured, NotActive
from bstar.machine.ballot import NO_BALLOT, Ballot, lease_expiry
from bstar.machine.fsm import Fault, State, Verdict
from bstar.machine.member_values import ASKS_PER_HEARTBEAT
from bstar.machine.wire import StateMessage, WitnessAnswerKind
from bstar.net.readiness import fault_error
from bstar.reactor import ANNOUNCEMENTS_KEPT, CHANGES_KEPT
from tests.scenes.bstar_reactor import BEAT_S, NODE, PEER, Server, rounds
from tests.scenes.virtual_loop import in_virtual_time


@in_virtual_time
async def test_bst_15_a_state_message_is_sent_at_once_and_with_each_heartbeat() -> None:
    async with Server() as server:
        assert [message.sequence for _, message, _ in server.channel.published] == [1]
        await asyncio.sleep(3.5 * BEAT_S)
        assert [(digit, message.sequence, stock) for digit, message, stock in server.channel.published] == [
            (State.PRIMARY, number, False) for number in (1, 2, 3, 4)
        ]
        assert server._timer.when == asyncio.get_running_loop().time() + BEAT_S / 2


@in_virtual_time
async def test_a_clock_that_has_stood_still_is_asked_again() -> None:
    """That of the loop is another one: a beat that comes too early for the machine is set again."""
    async with Server() as server:
        server.behind_s = 0.25
        await asyncio.sleep(3.5 * BEAT_S)
        assert [message.sequence for _, message, _ in server.channel.published] == [1, 2, 3, 4]


@in_virtual_time
async def test_bst_15_another_heartbeat_of_the_peer_is_counted() -> None:
    async with Server() as server:
        server.hears(State.PASSIVE, 1)
        assert server.counters["heartbeat_mismatch"] == 0
        server.hears(State.PASSIVE, 2, heartbeat_ms=500)
        assert server.counters["heartbeat_mismatch"] == 1


def test_a_pair_of_the_guide_is_not_guarded() -> None:
    async def guards() -> list[str]:
        ends: dict[str, Any] = {"local": "tcp://127.0.0.1:*", "remote": "tcp://127.0.0.1:1"}
        return [bstar.Pair(State.PRIMARY, compatible=compatible, **ends).guard for compatible in (True, False)]

    assert asyncio.run(guards()) == ["none", "fenced"]


@in_virtual_time
async def test_a_vote_makes_it_serve_when_its_ballot_is_written_and_its_callbacks_have_run() -> None:
    async with Server() as server:
        seen: list[Any] = []

        async def loads() -> None:
            seen.append((server.state, server.serves(), server.verdict(NO_BALLOT)))
            await asyncio.sleep(1.0)

        server._callbacks.on_active.append(loads)
        server._callbacks.on_serving.append(lambda: seen.append(("serving", server.serves(), [*server.votes.told])))
        events: list[dict[str, Any]] = []
        server._callbacks.on_event.append(events.append)
        assert server.verdict(NO_BALLOT) is Verdict.REJECT  # nobody was listened to yet
        assert (server.ballot(), server.known(), server.active_role()) == (NO_BALLOT, NO_BALLOT, None)
        await asyncio.sleep(2 * BEAT_S)
        assert server.verdict(NO_BALLOT) is Verdict.HOLD
        assert server.state is State.PRIMARY
        await rounds()
        assert (server.state, server.serves()) == (State.ACTIVE, False)
        await asyncio.sleep(1.1)
        assert seen == [(State.ACTIVE, False, Verdict.HOLD), ("serving", True, [])]
        assert server.votes.told == ["released"]
        assert server.verdict(NO_BALLOT) is Verdict.ACCEPT
        assert server.counters["ballots_named"] == 0
        ours = Ballot(1, NODE)
        assert (server.ballot(), server.known(), server.active_role()) == (ours, ours, State.PRIMARY)
        began = asyncio.get_running_loop().time() - 1.1
        assert events == [{"event": "active", "at": began, "role": "primary", "ballot": str(ours), "reason": ""}]
        assert ([*server._changes], server.counters["became_active"]) == (events, 1)


@in_virtual_time
async def test_bst_12_a_higher_ballot_of_the_peer_ends_its_service() -> None:
    async with Server() as server:
        await server.serve_alone()
        passive: list[State] = []
        server._callbacks.on_passive.append(lambda: passive.append(server.state))
        server.hears(State.ACTIVE, 1, counter=5)
        assert (server.state, server.serves(), server.votes.told) == (State.PASSIVE, False, ["released", "refused"])
        await rounds()
        assert passive == [State.PASSIVE]
        assert server._changes[-1] | {"at": 0.0} == {
            "event": "passive", "at": 0.0, "role": "primary", "ballot": str(NO_BALLOT), "reason": "the peer is active",
        }  # fmt: skip
        assert server.counters["became_passive"] == 1
        assert (server.known(), server.active_role()) == (Ballot(5, NODE), State.BACKUP)
        assert server.refusal().active == "backup"
        await asyncio.sleep(2 * BEAT_S)
        assert (server.active_role(), server.refusal().active) == (None, "")


@in_virtual_time
async def test_a_server_that_ends_while_it_enters_serves_nobody() -> None:
    async with Server() as server:
        server._callbacks.on_active.append(lambda: server.hears(State.ACTIVE, 1, counter=5))
        server._callbacks.on_serving.append(lambda: server.votes.told.append("serving"))
        await asyncio.sleep(2 * BEAT_S)
        server.verdict(NO_BALLOT)
        await rounds()
        assert (server.state, server.votes.told) == (State.PASSIVE, ["refused"])


@in_virtual_time
async def test_a_backup_names_the_active_peer_and_when_to_ask_again() -> None:
    async with Server(State.BACKUP) as server:
        server.hears(State.ACTIVE, 1, counter=3)
        assert (server.state, server.active_role(), server.known()) == (State.PASSIVE, State.PRIMARY, Ballot(3, NODE))
        refusal = server.refusal()
        assert (refusal.active, refusal.retry_s) == ("primary", 2 * BEAT_S)
        assert server.verdict(NO_BALLOT) is Verdict.REJECT
    stopping = server.refusal()
    assert (str(stopping), stopping.active, stopping.retry_s) == (str(NotActive("stopping")), "", BEAT_S)
    assert (server.active_role(), server.known(), server.ballot()) == (None, NO_BALLOT, NO_BALLOT)
    assert (server.serves(), server.verdict(NO_BALLOT)) == (False, Verdict.REJECT)
    with pytest.raises(RuntimeError, match="within its block"):
        _ = server.machine


@in_virtual_time
async def test_bst_18_an_outdated_message_is_no_sign_of_life() -> None:
    async with Server(State.BACKUP) as server:
        server.hears(State.PASSIVE, 5)
        heard = asyncio.get_running_loop().time()
        await asyncio.sleep(0.5)
        server.hears(State.ACTIVE, 5)
        assert (server._heard_at, server.machine.stale) == (heard, 1)
        server.hears(State.PASSIVE, 6)
        assert server._heard_at == heard + 0.5


@in_virtual_time
async def test_a_stock_peer_gets_digits_alone_until_it_sends_a_ballot_message() -> None:
    async with Server(State.BACKUP) as server:
        server._on_state_message(StateMessage(State.PRIMARY))
        await asyncio.sleep(5 * BEAT_S)
        assert server.channel.published[-1][2]
        server.hears(State.PRIMARY, 1)
        await asyncio.sleep(BEAT_S)
        assert not server.channel.published[-1][2]


@in_virtual_time
async def test_a_counter_that_nobody_can_have_drawn_is_not_believed() -> None:
    async with Server(lease_s=2.0) as server:
        await server.serve_alone()
        ours = server.ballot()
        server.hears(State.ACTIVE, 1, counter=2**47)
        server.answered(WitnessAnswerKind.REFUSED, ours, highest=2**47, holder=Ballot(2**47, PEER))
        assert (server.serves(), server.counters["ballot_too_far"], server._heard_at) == (True, 2, None)
        server.answered(WitnessAnswerKind.REFUSED, ours, highest=50, holder=Ballot(50, PEER))
        assert (server.serves(), server.state) == (False, State.PASSIVE)
        assert server.votes.told[-1] == "refused"


@in_virtual_time
async def test_bst_39_the_witness_is_asked_and_its_lease_returned() -> None:
    async with Server(lease_s=2.0, counter=4) as server:
        assert server.lease.released == [Ballot(4, NODE)]  # of an earlier process
        await server.serve_alone()
        ours = Ballot(5, NODE)
        assert server.lease.asked[0] == (ours, False)
        asked = len(server.lease.asked)
        await asyncio.sleep(BEAT_S + 0.01)
        assert server.lease.asked[asked:] == [(ours, True)] * ASKS_PER_HEARTBEAT
        server.answered(WitnessAnswerKind.GRANTED, ours)
        assert server.machine.member.lease_until == lease_expiry(asyncio.get_running_loop().time(), 2.0)
        await asyncio.sleep(1.9)
        assert server.serves()
        await asyncio.sleep(0.2)
        assert (server.serves(), server.state) == (False, State.PASSIVE)
        assert server._changes[-1]["reason"] == "the witness did not renew the lease"


@in_virtual_time
async def test_a_lease_too_short_to_be_renewed_is_the_fault_of_the_configuration(caplog: pytest.LogCaptureFixture) -> None:
    """With a shorter heartbeat of the witness the server was active for moments, and showed no trouble."""
    async with Server(lease_s=2.0) as server:
        await server.serve_alone()
        assert (server.counters["heartbeat_mismatch"], server.trouble()) == (0, "")
        for _ in range(2):
            server.answered(WitnessAnswerKind.GRANTED, server.ballot(), wait_ms=200)
        lines = [(one.ours_ms, one.its_ms) for one in caplog.records if hasattr(one, "its_ms")]  # type: ignore[attr-defined]
        assert (server.counters["heartbeat_mismatch"], lines, server.trouble()) == (1, [(1000, 100)], "")
        await asyncio.sleep(2 * BEAT_S)
        assert server.state is State.PASSIVE
        assert server.trouble() == "the witness grants leases of 200 ms, not of 2000 ms: give it the same heartbeat"


@in_virtual_time
async def test_a_lease_that_another_ballot_has_is_not_ours() -> None:
    async with Server(lease_s=2.0) as server:
        await asyncio.sleep(2 * BEAT_S)
        server.verdict(NO_BALLOT)
        await rounds()
        ((asked, _),) = server.lease.asked
        server.answered(WitnessAnswerKind.GRANTED, asked, holder=Ballot(1, PEER))
        await rounds()
        assert server.state is State.PRIMARY
        server.answered(WitnessAnswerKind.GRANTED, asked, wait_ms=1000)
        assert (server.state, server.machine.member.lease_until) == (State.ACTIVE, lease_expiry(asyncio.get_running_loop().time(), 1.0))


@in_virtual_time
async def test_a_refusal_says_when_the_witness_is_asked_again() -> None:
    async with Server(lease_s=2.0) as server:
        await asyncio.sleep(2 * BEAT_S)
        server.verdict(NO_BALLOT)
        await rounds()
        ((asked, _),) = server.lease.asked
        server.answered(WitnessAnswerKind.REFUSED, asked, holder=Ballot(1, PEER), wait_ms=100)
        await asyncio.sleep(0.09995)
        assert len(server.lease.asked) == 1
        await asyncio.sleep(0.0001)
        assert len(server.lease.asked) == 2


@in_virtual_time
async def test_bst_39_an_announcement_of_an_earlier_ballot_counts_no_more() -> None:
    async with Server(lease_s=2.0) as server:
        await server.serve_alone()
        old = server.channel.published[-1][1].sequence
        await asyncio.sleep(3 * BEAT_S)
        assert server.state is State.PASSIVE
        await server.serve_alone()
        assert min(server._announced_at) > old


@in_virtual_time
async def test_bst_39_a_passive_peer_that_has_heard_us_counts_as_a_lease() -> None:
    async with Server(lease_s=2.0) as server:
        await server.serve_alone()
        for number in range(1, 9):
            await asyncio.sleep(BEAT_S / 2)
            latest = server.channel.published[-1][1]
            assert latest.state is State.ACTIVE
            server.hears(State.PASSIVE, number, heard_incarnation=1, heard_sequence=latest.sequence)
        assert server.serves()
        server.hears(State.PASSIVE, 9, heard_incarnation=2, heard_sequence=max(server._announced_at))
        await asyncio.sleep(2 * BEAT_S)
        assert not server.serves()


@in_virtual_time
async def test_so_many_announcements_are_kept() -> None:
    async with Server(lease_s=2.0) as server:
        await server.serve_alone()
        first = len(server._announced_at)
        for _ in range(ANNOUNCEMENTS_KEPT + 5 - first):
            server._announce()
        assert len(server._announced_at) == ANNOUNCEMENTS_KEPT
        assert min(server._announced_at) == max(server._announced_at) - ANNOUNCEMENTS_KEPT + 1
    async with Server() as server:
        await server.serve_alone()
        assert not server._announced_at


@in_virtual_time
async def test_bst_45_a_higher_ballot_that_a_client_names_is_asked_about_once_a_heartbeat() -> None:
    async with Server(lease_s=2.0) as server:
        await server.serve_alone()
        higher, published, asked = Ballot(3, PEER), len(server.channel.published), len(server.lease.asked)
        assert (server.verdict(higher), server.vouches(higher)) == (Verdict.REJECT, False)
        assert (len(server.channel.published), len(server.lease.asked)) == (published + 1, asked + 1)
        assert server.verdict(higher) is Verdict.REJECT
        assert len(server.channel.published) == published + 1
        assert (server.counters["ballots_named"], server.counters["ballots_asked_about"]) == (2, 1)
        sequence = server.channel.published[-1][1].sequence
        server.hears(State.PASSIVE, 1, heard_incarnation=1, heard_sequence=sequence - 1)
        assert not server.vouches(higher)
        server.hears(State.PASSIVE, 2, heard_incarnation=2, heard_sequence=sequence)
        assert not server.vouches(higher)
        server.hears(State.PASSIVE, 3, heard_incarnation=1, heard_sequence=sequence)
        assert (server.vouches(higher), server.vouches(server.ballot())) == (True, False)
        assert server.verdict(higher) is Verdict.ACCEPT
        assert server.serves()


@in_virtual_time
async def test_bst_45_it_is_asked_about_again_after_a_heartbeat() -> None:
    async with Server() as server:
        await server.serve_alone()
        for wait_s, asked in ((0.0, 1), (0.9995, 1), (0.0005, 2)):
            await asyncio.sleep(wait_s)
            assert server.verdict(Ballot(3, PEER)) is Verdict.REJECT
            assert server.counters["ballots_asked_about"] == asked


@in_virtual_time
async def test_bst_45_a_server_that_is_not_active_asks_nobody() -> None:
    async with Server(State.BACKUP) as server:
        assert server.verdict(Ballot(3, PEER)) is Verdict.REJECT
        assert server.counters["ballots_named"] == 0


@in_virtual_time
async def test_bst_45_a_renewed_lease_says_that_nobody_else_serves() -> None:
    async with Server(lease_s=2.0) as server:
        await server.serve_alone()
        higher = Ballot(3, PEER)
        assert server.verdict(higher) is Verdict.REJECT
        await asyncio.sleep(0.1)
        server.answered(WitnessAnswerKind.GRANTED, server.ballot())
        assert server.verdict(higher) is Verdict.ACCEPT


@in_virtual_time
async def test_bst_06_a_fault_stops_it_for_good() -> None:
    async with Server(lease_s=2.0) as server:
        await server.serve_alone()
        ours, published = server.ballot(), len(server.channel.published)
        server._fail(fault_error(Fault.DUAL_ACTIVE))
        server._fail(ValueError("no second end"))
        assert (server.lease.released, server.votes.told) == ([ours], ["released", "refused"])
        assert (server.serves(), server.verdict(NO_BALLOT), str(server.refusal())) == (False, Verdict.REJECT, str(NotActive("stopping")))
        server.hears(State.ACTIVE, 1, counter=9)
        server.answered(WitnessAnswerKind.REFUSED, ours, highest=50, holder=Ballot(50, PEER))
        server._announce()
        server._tick()
        await asyncio.sleep(5 * BEAT_S)
        server._tick()
        assert (server.state, len(server.channel.published), server._heard_at) == (State.ACTIVE, published, None)
        with pytest.raises(DualActive):
            await server.serve_forever()


@in_virtual_time
async def test_a_peer_of_our_role_stops_it_and_nothing_is_released_that_it_does_not_have() -> None:
    async with Server(lease_s=2.0) as server:
        server.hears(State.PRIMARY, 1, role=State.PRIMARY)
        with pytest.raises(Misconfigured, match="both servers are configured as primary"):
            await server.serve_forever()
        assert (server.lease.released, server._timer.when) == ([], None)


@in_virtual_time
async def test_nothing_is_claimed_while_a_ballot_cannot_be_written_and_writing_is_tried_again() -> None:
    async with Server() as server:
        saved: list[int] = []

        async def save(counter: int) -> bool:
            saved.append(counter)
            server._writer.trouble = "No space left on device"
            server._writer._retry_at = server._clock() + 3.0
            return False

        async def try_again() -> None:
            saved.append(0)
            server._writer.trouble = ""

        server._writer.save, server._writer.try_again = save, try_again  # type: ignore[method-assign,assignment]
        await asyncio.sleep(2 * BEAT_S)
        assert server.verdict(NO_BALLOT) is Verdict.HOLD
        await rounds()
        assert (server.state, server.votes.told, saved) == (State.PRIMARY, ["refused"], [1])
        assert server.verdict(NO_BALLOT) is Verdict.REJECT
        await asyncio.sleep(2.9)
        assert saved == [1]
        await asyncio.sleep(BEAT_S)
        assert saved == [1, 0]
        assert server.verdict(NO_BALLOT) is Verdict.HOLD


@in_virtual_time
async def test_a_claim_without_another_vote_is_dropped_and_its_held_requests_refused() -> None:
    async with Server(lease_s=2.0) as server:
        await asyncio.sleep(2 * BEAT_S)
        assert server.verdict(NO_BALLOT) is Verdict.HOLD
        await asyncio.sleep(2 * BEAT_S + 0.1)
        assert (server.votes.told, server.state, server.counters["claims_failed"]) == (["refused"], State.PRIMARY, 1)
        assert server._troubles.text(server.machine, cast("Any", server.lease)) == "slow"
        await server.serve_alone()
        assert server._troubles.text(server.machine, cast("Any", server.lease)) == ""


@in_virtual_time
async def test_a_claim_whose_ballot_is_written_for_too_long_says_so() -> None:
    async with Server() as server:

        async def save(counter: int) -> bool:
            server._writer.writing += 1
            await asyncio.Event().wait()
            return True

        server._writer.save = save  # type: ignore[method-assign,assignment]
        await asyncio.sleep(2 * BEAT_S)
        assert server.verdict(NO_BALLOT) is Verdict.HOLD
        await asyncio.sleep(2 * BEAT_S + 0.1)
        assert server._troubles.text(server.machine, None) == "writing the ballot takes longer than two heartbeats"


@in_virtual_time
async def test_changes_and_the_end_are_logged_with_what_is_known_of_them(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bstar.pair")
    async with Server() as server:
        await server.serve_alone()
        server.hears(State.ACTIVE, 1, counter=5)
        server._fail(ValueError("why"))
    names = ("role", "ballot", "reason")
    assert [(one.message, {name: vars(one)[name] for name in names if name in vars(one)}) for one in caplog.records] == [
        ("active", {"role": "primary", "ballot": str(Ballot(1, NODE))}),
        ("passive", {"role": "primary", "reason": "the peer is active"}),
        ("stopped", {"role": "primary", "reason": "why"}),
    ]


@in_virtual_time
async def test_the_latest_changes_are_kept() -> None:
    async with Server() as server:
        for number in range(CHANGES_KEPT + 1):
            server._record_change(f"{number}")
        assert [change["event"] for change in server._changes] == [f"{number}" for number in range(1, CHANGES_KEPT + 1)]


# --- a peer that is being connected to (BST-02) -----------------------------------------------------------------------------------


async def first_hold(server: Server, until_s: float = 11.0) -> float:
    """Vote each tenth of a heartbeat; return when the first vote counts, in seconds since the start."""
    loop, begun = asyncio.get_running_loop(), server._began_at
    while (verdict := server.verdict(NO_BALLOT)) is Verdict.REJECT:
        assert loop.time() < begun + until_s
        await asyncio.sleep(BEAT_S / 10)
    assert verdict is Verdict.HOLD
    return round(loop.time() - begun, 1)


@in_virtual_time
@pytest.mark.parametrize(
    ("links", "at_s"),
    [
        ([], 10.0),
        ([(0.1, False)], 2.0),
        ([(0.5, True)], 2.5),
        ([(3.0, True)], 6.0),
        ([(7.0, True)], 10.0),
        ([(1.0, True), (1.5, False)], 2.0),
        ([(1.0, False), (1.5, True)], 3.5),
    ],
)
async def test_two_heartbeats_of_listening_begin_with_the_connection(links: list[tuple[float, bool]], at_s: float) -> None:
    """Its first message is there as soon as a connection can be: one that took long is given as long."""
    async with Server() as server:
        server._began_at = server._clock()
        for after_s, joined in links:
            asyncio.get_running_loop().call_later(after_s, server._on_link, joined)
        assert await first_hold(server) == at_s


@in_virtual_time
@pytest.mark.parametrize("lease_s", [2.0, 0.0])
async def test_with_a_witness_or_after_a_message_the_connection_is_not_waited_for(lease_s: float) -> None:
    async with Server(lease_s=lease_s) as server:
        server._began_at = server._clock()
        if not lease_s:
            server.hears(State.PASSIVE, 1)
        assert await first_hold(server) <= 2.0
