"""bstar.net.state_channel: what is published, what is believed and in which order, over scripted sockets."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, cast

import pytest

import core
from bstar.machine.ballot import Ballot
from bstar.machine.fsm import State
from bstar.machine.signing import PairKey, Trust
from bstar.machine.wire import DIGITS, SIGNED_STATE_TOPIC, STATE_TOPIC, StateMessage, encode_digit, encode_state
from bstar.net.state_channel import StateChannel
from tests.scenes.scripted_socket import ScriptedContext

KEY = PairKey(bytes(32))


def state(sequence: int = 1) -> StateMessage:
    return StateMessage(State.ACTIVE, State.PRIMARY, node=7, incarnation=1, sequence=sequence, ballot=Ballot(3, 7), heartbeat_ms=1000)


class Scene:
    """A channel and its two sockets."""

    def __init__(self, key: PairKey | None = None, *, ballots: bool = True, required: bool = True, **options: Any) -> None:
        context = ScriptedContext()
        self.counters: Counter[str] = Counter()
        self.heard: list[StateMessage] = []
        self.watchers = 0
        self.links: list[bool] = []
        self.channel = StateChannel(
            cast("Any", context),
            "inproc://ours",
            "inproc://theirs",
            ballots=ballots,
            trust=Trust(key, required=required),
            on_message=self.heard.append,
            on_watcher=self.watch,
            on_link=self.links.append,
            counters=self.counters,
            socket_options=options,
        )
        self.out, self.into = context.sockets

    def watch(self) -> None:
        self.watchers += 1

    def published(self, *, peer_is_stock: bool = False) -> list[bytes]:
        self.channel.publish(State.ACTIVE, state(), peer_is_stock=peer_is_stock)
        return [frame for (frame,) in self.out.taken()]


async def delivered() -> None:
    await asyncio.sleep(0)


def test_both_sockets_have_what_the_channel_needs() -> None:
    scene = Scene(linger=5, xpub_verbose=0, sndhwm=3, connect_timeout=7)
    assert (scene.out.kind, scene.out.endpoints) == (core.XPUB, [("bind", "inproc://ours")])
    assert scene.out.options == {"linger": 0, "xpub_verbose": 1, "sndhwm": 3, "connect_timeout": 7}
    assert (scene.into.kind, scene.into.endpoints) == (core.SUB, [("connect", "inproc://theirs")])
    assert scene.into.options == {"linger": 0, "xpub_verbose": 0, "sndhwm": 3, "connect_timeout": 7, "refused_ivl": 30_000}
    assert scene.channel.endpoint == "inproc://ours"


@pytest.mark.parametrize("refused", ["inproc://ours", "inproc://theirs"])
def test_an_endpoint_that_is_refused_leaves_no_socket(refused: str) -> None:
    context = ScriptedContext(refused)
    with pytest.raises(core.AddressInUse):
        StateChannel(
            cast("Any", context),
            "inproc://ours",
            "inproc://theirs",
            ballots=True,
            trust=Trust(None, required=False),
            on_message=lambda _: None,
            on_watcher=lambda: None,
            on_link=lambda _: None,
            counters=Counter(),
            socket_options={},
        )
    assert [one.closed for one in context.sockets] == [True, True]


@pytest.mark.parametrize(
    ("key", "ballots", "required", "topics"),
    [
        (None, True, True, [STATE_TOPIC, *DIGITS]),
        (KEY, True, True, [SIGNED_STATE_TOPIC]),
        (KEY, True, False, [SIGNED_STATE_TOPIC, STATE_TOPIC, *DIGITS]),
        (None, False, False, [*DIGITS]),
    ],
)
def test_a_server_subscribes_to_what_it_would_believe(key: PairKey | None, ballots: bool, required: bool, topics: list[bytes]) -> None:
    scene = Scene(key, ballots=ballots, required=required)
    assert scene.into.set == [(core.SUBSCRIBE, topic) for topic in topics]


async def test_the_state_is_published_in_the_forms_that_somebody_reads() -> None:
    signed, plain, digit = encode_state(state(), KEY), encode_state(state()), encode_digit(State.ACTIVE)
    scene = Scene(KEY)
    assert scene.published() == []
    scene.out.deliver([b"\x01" + SIGNED_STATE_TOPIC], [b"\x01" + digit])
    assert scene.published() == [signed, digit]
    assert scene.published(peer_is_stock=True) == [digit]
    scene.out.deliver([b"\x01" + STATE_TOPIC], [b"\x00" + digit], [b"\x01" + encode_digit(State.PASSIVE)])
    assert scene.published() == [signed, plain]
    scene.out.deliver([b"\x00" + SIGNED_STATE_TOPIC], [b"\x00" + STATE_TOPIC], [b"\x01"], [b"\x02" + STATE_TOPIC])
    assert scene.published() == [digit]  # a watcher of all is one of the guide
    scene.out.deliver([b"\x01BSTAR"])
    assert scene.published() == [signed, plain, digit]
    await delivered()
    without = Scene()
    without.out.deliver([b"\x01BSTAR"])
    assert without.published() == [plain]
    compatible = Scene(ballots=False)
    compatible.out.deliver([b"\x01BSTAR"], [b"\x01"])
    assert compatible.published() == [digit]
    await delivered()


async def test_a_new_watcher_asks_for_the_state_once_a_read() -> None:
    scene = Scene()
    scene.out.deliver([b"\x01" + STATE_TOPIC], [b"\x01"])
    scene.out.deliver([b"\x01" + STATE_TOPIC])
    assert scene.watchers == 0
    await delivered()
    assert scene.watchers == 1
    scene.out.deliver([b"\x00"])
    await delivered()
    assert scene.watchers == 1
    scene.out.deliver([b"\x01"])
    await delivered()
    assert scene.watchers == 2


async def test_the_newest_of_each_kind_is_delivered_the_ballot_first() -> None:
    scene = Scene()
    scene.into.deliver([b"1"], [encode_state(state(1))])
    scene.into.deliver([b"3"], [encode_state(state(2))], [b"4"])
    assert scene.heard == []
    await delivered()
    assert (scene.heard, scene.watchers) == ([state(2), StateMessage(State.PASSIVE)], 0)
    assert scene.counters == {"state_drained": 3}
    scene.into.deliver([b"2"])
    await delivered()
    assert scene.heard[2:] == [StateMessage(State.BACKUP)]
    assert scene.counters == {"state_drained": 3}


async def test_messages_of_a_lost_connection_are_not_delivered() -> None:
    scene = Scene()
    scene.into.deliver([encode_state(state(1))])
    scene.into.peer(joined=True)
    await delivered()
    scene.into.deliver([encode_state(state(2))])
    scene.into.peer(joined=False)
    await delivered()
    assert scene.heard == [state(1)]


async def test_garbage_is_counted_and_what_follows_is_heard() -> None:
    scene = Scene()
    scene.into.deliver([b"5"], [b"1", b"1"], [encode_state(state(1))])
    await delivered()
    assert (scene.heard, scene.counters) == ([state(1)], {"state_malformed": 2})


async def test_with_a_key_only_signed_messages_are_heard() -> None:
    scene = Scene(KEY)
    scene.into.deliver([encode_state(state(1))], [b"1"], [encode_state(state(2), PairKey(b"x" * 32))])
    scene.into.deliver([encode_state(state(3), KEY)])
    await delivered()
    assert (scene.heard, scene.counters) == ([state(3)], {"state_unsigned": 3})
    assert scene.into.set == [(core.SUBSCRIBE, SIGNED_STATE_TOPIC)]


async def test_a_peer_that_has_the_derived_key_is_heard_signed_only_from_then_on() -> None:
    scene = Scene(KEY, required=False)
    scene.into.deliver([encode_state(state(1))])
    await delivered()
    assert (scene.heard, len(scene.into.set)) == ([state(1)], 6)
    scene.into.deliver([encode_state(state(2), KEY)], [encode_state(state(3))], [encode_state(state(4), KEY)])
    await delivered()
    assert (scene.heard[1:], scene.counters) == ([state(4)], {"state_unsigned": 1, "state_drained": 1})
    assert scene.into.set[6:] == [(core.UNSUBSCRIBE, topic) for topic in (STATE_TOPIC, *DIGITS)]


async def test_a_channel_that_closes_says_its_last_word_and_hears_nothing_more() -> None:
    scene = Scene()
    scene.into.deliver([b"1"])
    scene.channel.close()
    await scene.channel.wait_closed()
    await delivered()
    assert scene.heard == []
    assert [(one.closed, one.linger, one.waited) for one in (scene.into, scene.out)] == [(True, None, True), (True, 200, True)]


def test_connections_to_the_peer_and_attempts_that_failed_are_reported() -> None:
    scene = Scene()
    scene.into.fail_to_connect()
    scene.into.peer(joined=True)
    scene.into.peer(joined=False)
    assert scene.links == [False, True]
