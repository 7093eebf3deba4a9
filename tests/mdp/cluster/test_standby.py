"""mdp.cluster.standby: answers of a passive broker, disconnected peers, and requests that are held during a claim."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, cast

import pytest

from bstar.machine.ballot import NO_BALLOT, Ballot
from bstar.machine.fsm import Verdict
from bstar.net.voter import ITERATIONS_BEFORE_VERDICT
from mdp.cluster import standby
from mdp.cluster.standby import HOLD_S, StandbyFrontend, is_postponable
from mdp.wire.commands import client_request, worker_ready
from mdp.wire.failover import ballot_text
from mdp.wire.options import encode_options
from tests.scenes.mdp_dispatcher import batch
from tests.scenes.mdp_scripted_pair import BALLOT, ScriptedPair
from tests.scenes.virtual_loop import in_virtual_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    import bstar

CLIENT, OTHER = b"client", b"other"
REFUSAL = [b"300", ballot_text(BALLOT), b"500"]
ASKED_BALLOT = Ballot(9, 3)
ECHO = client_request("0.1", b"echo", [b"x"])
PROTOCOL = client_request("0.1", b"mmi.protocol", [b"0.3"])
PAIR = client_request("0.1", b"mmi.pair", [ballot_text(ASKED_BALLOT)])


class Scene:
    """A frontend with a scripted pair, and what it does to peers."""

    def __init__(self, says: Verdict = Verdict.REJECT) -> None:
        self.pair = ScriptedPair()
        self.pair.says = says
        self.counters: Counter[str] = Counter()
        self.replies: list[list[bytes]] = []
        self.disconnected: list[bytes] = []
        self.frontend = StandbyFrontend(
            cast("bstar.Pair", self.pair), self.counters, reply=self.replies.append, disconnect=self.disconnected.append
        )

    def say(self, *messages: Sequence[bytes], peer: bytes = CLIENT) -> None:
        self.frontend.receive(batch(peer, *messages))

    async def decided(self) -> None:
        for _ in range(ITERATIONS_BEFORE_VERDICT + 1):
            await asyncio.sleep(0)


# --- workers ----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "answer"),
    [
        (worker_ready("0.1", b"echo"), [b"", b"MDPW01", b"\x05"]),
        ([b"", b"MDPW01"], [b"", b"MDPW01", b"\x05"]),
        (worker_ready("0.2", b"echo"), [b"MDPW02", b"\x06"]),
        ([b"MDPW02"], [b"MDPW02", b"\x06"]),
        ([b"", *worker_ready("0.2", b"echo")], [b"", b"MDPW02", b"\x06"]),
        (worker_ready("0.3", b"echo"), [b"MDPW03\x07"]),
        ([b"MDPW03\x06"], [b"MDPW03\x07"]),
    ],
)
async def test_a_worker_gets_disconnect_in_its_dialect(message: list[bytes], answer: list[bytes]) -> None:
    scene = Scene()
    scene.say(message, message)
    assert scene.replies == [[CLIENT, *answer]] * 2
    assert (dict(scene.counters), scene.pair.asked, scene.disconnected) == ({"workers_sent_away": 2}, [], [])


@pytest.mark.parametrize(
    "message",
    [
        [b""],
        [b"", b"MDPC01"],
        [b"x", b"MDPW01"],
        [b"x", b"MDPC01", b"echo"],
        [b"", b"MDPX01", b"echo"],
        [b"MDPC02", b"\x01"],
        [b"MDPC02", b"\x02", b"echo", b"x"],
        [b"MDPC03\x01" + bytes(8), b"echo"],
        [b"MDPC03\x05" + bytes(8), b"echo", b"", b"x"],
        [b"MDPC03\x06"],
    ],
)
async def test_what_is_no_request_is_counted_and_no_vote(message: list[bytes]) -> None:
    scene = Scene()
    scene.say(message, message)
    await scene.decided()
    assert (dict(scene.counters), scene.pair.asked, scene.replies, scene.disconnected) == ({"gate_ignored": 2}, [], [], [])


# --- votes ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "seen"),
    [
        (ECHO, NO_BALLOT),
        ([b"", b"MDPC01", b"echo"], NO_BALLOT),
        (client_request("0.2", b"echo", [b"x"]), NO_BALLOT),
        ([b"MDPC02", b"\x01", b""], NO_BALLOT),
        ([b"", b"MDPC02", b"\x02", b"echo", b"x"], NO_BALLOT),
        (client_request("0.3", b"echo", [ballot_text(ASKED_BALLOT)], id=bytes(8)), NO_BALLOT),
        (client_request("0.3", b"mmi.pair", [ballot_text(ASKED_BALLOT)], id=bytes(8)), ASKED_BALLOT),
        (client_request("0.2", b"mmi.pair", [ballot_text(ASKED_BALLOT)]), NO_BALLOT),
    ],
)
async def test_a_client_votes_with_a_request_and_is_disconnected_when_it_is_refused(message: list[bytes], seen: Ballot) -> None:
    """The ballot that it knows is that of `mmi.pair`."""
    scene = Scene()
    scene.say(message)
    await scene.decided()
    assert (scene.pair.asked, scene.disconnected, scene.replies) == ([seen], [CLIENT], [])
    assert scene.counters == {"refused": 1}


@pytest.mark.parametrize(("body", "seen"), [([ballot_text(ASKED_BALLOT)], ASKED_BALLOT), ([b"nonsense"], NO_BALLOT), ([], NO_BALLOT)])
async def test_a_client_that_asks_about_the_pair_votes_and_learns_where_to_go(body: list[bytes], seen: Ballot) -> None:
    scene = Scene()
    scene.say([b"", b"MDPC01", b"mmi.pair", *body])
    assert scene.replies == []
    await scene.decided()
    assert (scene.pair.asked, scene.disconnected) == ([seen], [])
    assert scene.replies == [[CLIENT, b"", b"MDPC01", b"mmi.pair", *REFUSAL]]


async def test_a_query_of_the_dialect_is_answered_at_once_and_is_no_vote() -> None:
    """BST-10: workers send it too."""
    scene = Scene(Verdict.HOLD)
    scene.say(PROTOCOL, PROTOCOL)
    assert scene.replies == [[CLIENT, b"", b"MDPC01", b"mmi.protocol", *REFUSAL]] * 2
    await scene.decided()
    assert (scene.pair.asked, scene.disconnected, scene.counters) == ([], [], {"refused": 2})


async def test_votes_are_decided_once_the_state_channel_was_read() -> None:
    """BST-18. Those of a later read with the others, and the next ones anew."""
    scene = Scene()
    for _ in range(2):
        scene.say(ECHO)
        for _ in range(ITERATIONS_BEFORE_VERDICT - 1):
            await asyncio.sleep(0)
            assert scene.pair.asked == []
            scene.say(PAIR, peer=OTHER)
        await asyncio.sleep(0)
        assert scene.pair.asked == [NO_BALLOT] + [ASKED_BALLOT] * (ITERATIONS_BEFORE_VERDICT - 1)
        scene.pair.asked.clear()


# --- claims -----------------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_requests_held_during_a_claim_are_refused_after_a_while() -> None:
    """The while of all begins with the first; that of later ones anew."""
    loop, scene = asyncio.get_running_loop(), Scene(Verdict.HOLD)
    for _ in range(2):
        begun = loop.time()
        scene.say(ECHO)
        await asyncio.sleep(HOLD_S / 2)
        scene.say(PAIR, peer=OTHER)
        await asyncio.sleep(HOLD_S / 2 - 0.001)
        assert scene.counters["refused"] % 2 == 0
        while scene.counters["refused"] % 2 == 0 and not scene.disconnected:
            await asyncio.sleep(0.0005)
        assert loop.time() == pytest.approx(begun + HOLD_S, abs=0.002)
        assert (scene.disconnected, scene.replies) == ([CLIENT], [[OTHER, b"", b"MDPC01", b"mmi.pair", *REFUSAL]])
        scene.disconnected.clear()
        scene.replies.clear()
    assert scene.counters == {"refused": 4}


@in_virtual_time
async def test_requests_that_are_released_are_those_that_came_in_their_order() -> None:
    """Also those whose vote is not decided; nothing more becomes of any of them here."""
    scene = Scene(Verdict.HOLD)
    scene.say(ECHO, PAIR)
    await scene.decided()
    scene.say(PAIR, ECHO, PROTOCOL, peer=OTHER)
    asked = len(scene.pair.asked)
    assert scene.frontend.release_held() == [[CLIENT, *ECHO], [CLIENT, *PAIR], [OTHER, *PAIR], [OTHER, *ECHO]]
    assert scene.counters == {"served_after_a_claim": 4, "refused": 1}
    await asyncio.sleep(2 * HOLD_S)
    assert (scene.frontend.release_held(), len(scene.pair.asked), scene.disconnected) == ([], asked, [])
    assert scene.counters == {"served_after_a_claim": 4, "refused": 1}
    scene.say(ECHO)
    await asyncio.sleep(2 * HOLD_S)
    assert scene.disconnected == [CLIENT]


@in_virtual_time
async def test_nothing_becomes_of_what_a_closed_frontend_held() -> None:
    scene = Scene(Verdict.HOLD)
    scene.say(ECHO)
    await scene.decided()
    scene.say(ECHO)
    asked = len(scene.pair.asked)
    scene.frontend.close()
    await asyncio.sleep(2 * HOLD_S)
    assert (scene.frontend.release_held(), len(scene.pair.asked), scene.disconnected, scene.replies) == ([], asked, [], [])


async def test_requests_of_a_client_that_leaves_are_forgotten() -> None:
    scene = Scene(Verdict.HOLD)
    for _ in range(2):
        scene.say(ECHO)
        scene.say(PAIR, peer=OTHER)
        await scene.decided()
    scene.say(ECHO)
    scene.say(PAIR, peer=OTHER)
    scene.frontend.peer_changed(CLIENT, False)
    assert scene.frontend.release_held() == [[OTHER, *PAIR]] * 3


async def test_requests_stay_where_a_peer_comes() -> None:
    scene = Scene(Verdict.HOLD)
    scene.say(ECHO)
    scene.frontend.peer_changed(CLIENT, True)
    assert scene.frontend.release_held() == [[CLIENT, *ECHO]]


async def test_a_vote_after_a_release_is_decided_as_late_as_any() -> None:
    """BST-18."""
    scene = Scene()
    scene.say(ECHO)
    await asyncio.sleep(0)
    scene.frontend.release_held()
    scene.say(ECHO)
    for _ in range(ITERATIONS_BEFORE_VERDICT - 1):
        await asyncio.sleep(0)
        assert scene.pair.asked == []
    await asyncio.sleep(0)
    assert scene.pair.asked == [NO_BALLOT]


# --- limits -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("decided", [True, False])
async def test_so_many_requests_are_held_at_most(decided: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(standby, "HELD_MAX", 3)
    scene = Scene(Verdict.HOLD)
    scene.say(ECHO, ECHO)
    if decided:
        await scene.decided()
    scene.say(ECHO)
    scene.say(PAIR, ECHO, peer=OTHER)
    assert scene.counters == {"held_overflow": 2, "refused": 2}
    assert (scene.replies, scene.disconnected) == ([[OTHER, b"", b"MDPC01", b"mmi.pair", *REFUSAL]], [OTHER])
    assert scene.frontend.release_held() == [[CLIENT, *ECHO]] * 3


def sizes(*messages: list[bytes], peer: bytes = CLIENT) -> int:
    return sum(len(peer) + sum(map(len, message)) for message in messages)


@in_virtual_time
@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize("freed_by", ["refusing", "holding", "leaving", "releasing"])
async def test_so_many_octets_are_held_at_most(freed_by: str, missing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The space of requests that are gone is that of others."""
    last = [b"", b"MDPC01", b""]
    monkeypatch.setattr(standby, "HELD_BYTES_MAX", sizes(ECHO, PAIR, last) + sizes(ECHO, peer=OTHER) - missing)
    scene = Scene(Verdict.REJECT if freed_by == "refusing" else Verdict.HOLD)
    for first in (True, False):
        before = scene.counters["held_overflow"]
        scene.say(ECHO, PAIR)
        if freed_by == "leaving":
            await scene.decided()
        if first or freed_by != "leaving":
            scene.say(ECHO, peer=OTHER)
        assert scene.counters["held_overflow"] == before
        scene.say(last)
        assert scene.counters["held_overflow"] == before + missing
        if freed_by == "leaving":
            scene.frontend.peer_changed(CLIENT, False)
        elif freed_by == "releasing":
            assert len(scene.frontend.release_held()) == 4 - missing
        else:
            await asyncio.sleep(2 * HOLD_S)


# --- during a hand-over -----------------------------------------------------------------------------------------------------------


def test_requests_whose_clients_send_them_again_are_postponed() -> None:
    once = encode_options({"once": True})
    for frames, postponed in (
        ([b"", b"MDPC01", b"echo"], True),
        ([b"", b"MDPC01"], False),
        ([b"x", b"MDPC01", b"echo"], False),
        ([b"", b"MDPX01", b"echo"], False),
        ([b"MDPC02", b"\x01", b"echo"], True),
        ([b"MDPC02", b"\x02", b"echo"], False),
        ([b"MDPX02", b"\x01", b"echo"], False),
        ([b"", b"MDPC02", b"\x02", b"echo", b"x"], True),
        ([b"MDPC03\x01" + bytes(8), b"echo", b""], True),
        ([b"MDPC03\x01" + bytes(8), b"echo"], False),
        ([b"MDPC03\x01" + bytes(8), b"echo", b"", once], True),
        ([b"MDPC03\x01" + bytes(8), b"echo", once], False),
        ([b"MDPC03\x01" + bytes(8), b"echo", b"\xc1"], True),
        ([b"MDPC03\x05" + bytes(8), b"echo", b"", b"x"], False),
    ):
        assert is_postponable([b"peer", *frames]) is postponed, frames
