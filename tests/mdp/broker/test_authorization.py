"""BEY-11: a decision is cached; when the right or the service ends, the decision ends at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack
import pytest
from hypothesis import settings

from core.zmtp.frames import MORE, encode_prefix, frame_at
from mdp.access.rules import Rules
from mdp.broker.authorization import GuardedDispatcher, Refusal
from mdp.wire.commands import client_request
from mdp.wire.events import Failure, Work
from mdp.wire.options import OWNER_BYTES, decode_request_options, encode_options
from tests.mdp.broker.test_dispatcher_model import Model
from tests.scenes.mdp_dispatcher import DIALECTS, Scene, batch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mdp.broker.dispatcher import Dispatcher
    from mdp.broker.limits import BrokerOptions
    from mdp.wire.commands import Dialect

ALL = Rules({"allow": [{"who": ["*"], "anonymous": True, "call": ["*"], "serve": ["*"], "manage": ["*"]}]})
WEB_AND_DESK = {"allow": [{"who": ["web"], "call": ["echo", "e*"]}, {"who": ["desk"], "serve": ["*"]}, {"who": ["root"], "manage": ["*"]}]}


class Guarded(Scene):
    """A scene with rules: both its machines have them."""

    def __init__(self, rules: Rules = ALL, **options: float | bool) -> None:
        self.rules = rules
        self.users: dict[bytes, str | None] = {b"c": "web", b"w": "desk", b"r": "root"}
        self.refusals: list[Refusal] = []
        super().__init__(**options)

    def new_machine(self, limits: BrokerOptions) -> Dispatcher:
        return GuardedDispatcher(limits, self.rules, user_of=self.users.get, audit=self.refusals.append, now=self.now)

    def known(self, dialect: Dialect, peer: bytes = b"c", service: bytes = b"echo") -> bool:
        """Let a client ask; return whether its request was known to be allowed."""
        assert isinstance(self.machine, GuardedDispatcher)
        route = encode_prefix([service]) + (b"\x01\x00" if dialect == "0.3" else b"")
        known = route in self.machine.routes_of(peer)
        self.ask(dialect, peer, service=service)
        return known

    def set_rules(self, content: Mapping[str, object]) -> None:
        self.both("set_rules", Rules(content))

    def check_routes(self) -> None:
        super().check_routes()
        assert isinstance(self.machine, GuardedDispatcher)
        for peer in [*self.machine.routes]:
            assert self.machine.routes_of(peer).items() <= self.machine.directory.routes_encoded.items()


def test_new_rules_refuse_every_request_with_a_key_that_waits() -> None:
    """Also where one client has several: when one ends, its record is the next one's."""
    scene = Guarded(queue_ms=3_600_000.0)
    for client in (b"c", b"c", b"c", b"d"):
        scene.ask("0.3", client, b"x", options={"key": b"k", "wait": True})
    scene.set_rules({"allow": [{"who": ["desk"], "call": ["*"], "serve": ["*"]}, {"who": ["dean"], "call": ["*"]}]})
    assert [event.code for event in scene.at_client(b"c") if isinstance(event, Failure)] == ["FORBIDDEN"] * 3
    assert scene.failure(b"d") == "FORBIDDEN"
    assert scene.machine.idle
    scene.check()


def opened(dialect: Dialect) -> Guarded:
    """Return a scene in which the client was allowed to call."""
    scene = Guarded(Rules(WEB_AND_DESK), queue_ms=3_600_000.0, manage=True)
    scene.ready(dialect, b"w", credit=8)
    assert not scene.known(dialect)
    return scene


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_first_request_is_judged_and_the_next_is_known(dialect: Dialect) -> None:
    scene = opened(dialect)
    assert scene.known(dialect)
    assert not scene.refusals


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_not_allowed_is_judged_each_time(dialect: Dialect) -> None:
    scene = Guarded(Rules(WEB_AND_DESK))
    scene.ready("0.3", b"w", b"other", credit=8)
    for _ in range(3):
        assert not scene.known(dialect, service=b"other")
    assert not scene.at_worker(b"w")
    assert {(one.user, one.verb, one.service) for one in scene.refusals} == {("web", "call", b"other")}
    assert len(scene.refusals) == 6  # by both machines


@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_one_may_another_may_not(dialect: Dialect) -> None:
    scene = opened(dialect)
    assert not scene.known(dialect, b"stranger")
    assert not scene.known(dialect, b"stranger")
    assert len(scene.refusals) == 4


def test_keys_of_another_user_are_not_known_and_need_the_right_to_call() -> None:
    """IDM-08."""
    scene = opened("0.3")
    scene.users[b"d"] = "web"
    scene.users[b"v"] = "visitor"
    scene.set_rules({"allow": [{"who": ["web", "other"], "call": ["echo"]}, {"who": ["desk"], "serve": ["*"]}]})
    scene.users[b"o"] = "other"
    scene.ask("0.3", b"c", b"x", options={"key": b"k"})
    for peer, states in ((b"d", [b"200", b"r"]), (b"o", [b"200", b"-"]), (b"v", [b"403"])):
        scene.ask("0.3", peer, msgpack.packb([b"k"]), b"echo", service=b"mmi.keys")
        assert scene.reply(peer) == states
    assert {(one.user, one.verb, one.service) for one in scene.refusals} == {("visitor", "call", b"echo")}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_new_rules_hold_at_once(dialect: Dialect) -> None:
    scene = opened(dialect)
    assert scene.known(dialect)
    scene.set_rules({"allow": [{"who": ["web"], "call": ["other"]}, {"who": ["desk"], "serve": ["*"]}]})
    before = len(scene.at_worker(b"w"))
    assert before
    assert not scene.known(dialect)
    assert not scene.at_worker(b"w")
    assert scene.refusals
    scene.set_rules(WEB_AND_DESK)
    assert not scene.known(dialect)
    assert scene.known(dialect)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_another_with_the_same_routing_id_is_judged_anew(dialect: Dialect) -> None:
    scene = opened(dialect)
    scene.lose(b"c")
    scene.users[b"c"] = "visitor"
    scene.both("peer_joined", b"c")
    assert not scene.known(dialect)
    assert scene.refusals[-1].user == "visitor"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("end", ["worker", "disable", "drain"])
def test_a_service_that_ends_ends_every_route_to_it(dialect: Dialect, end: str) -> None:
    scene = opened(dialect)
    if end == "worker":
        scene.lose(b"w")
    elif end == "disable":
        scene.ask("0.3", b"r", b"echo", service=b"mmi.disable")
    else:
        scene.both("drain")
    assert not scene.known(dialect)
    if end == "worker":
        scene.ready(dialect, b"w", credit=8)
        assert not scene.known(dialect)
        assert scene.known(dialect)
    assert not scene.refusals


@pytest.mark.parametrize("dialect", DIALECTS)
def test_services_of_its_own_choice_take_a_peer_no_more_than_so_much_memory(dialect: Dialect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdp.broker.authorization._REMEMBERED_MAX", 8)
    scene = Guarded()
    for number in range(30):
        scene.ready(dialect, b"w%d" % number, b"e%d" % number)
        assert not scene.known(dialect, service=b"e%d" % number)
    assert scene.known(dialect, service=b"e29")
    assert isinstance(scene.machine, GuardedDispatcher)
    assert max(map(len, scene.machine.routes.values())) <= 16


class GuardedModel(Model):
    """Whatever peers do: with rules that allow it all, a broker does what one without rules does."""

    new_scene = Guarded


GuardedModel.TestCase.settings = settings(max_examples=30, stateful_step_count=50)
test_dispatcher_with_rules_and_reference = pytest.mark.timeout(300)(GuardedModel.TestCase)


def test_a_worker_gets_with_a_key_whose_it_is() -> None:
    """As a digest, because it may not see the users; the rest of the request is as it was sent."""
    scene = Guarded()
    scene.users |= {b"d": "shop", b"e": "web"}
    scene.ready("0.3", b"w", credit=8)
    options: dict[str, object] = {"key": b"k", "trace": {"a": "b"}}
    for client in (b"c", b"d", b"e"):
        scene.ask("0.3", client, b"first", b"second", options=options)
    works = [event for event in scene.at_worker(b"w") if isinstance(event, Work)]
    assert len(works) == 2, "one for each user"
    told = [decode_request_options(work.options, amended=True) for work in works]
    assert [one.key for one in told] == [b"k", b"k"]
    assert [one.trace for one in told] == [{"a": "b"}] * 2
    owners = {one.owner for one in told}
    assert {len(owner or b"") for owner in owners} == {OWNER_BYTES}
    assert len(owners) == 2
    assert [[*work.body] for work in works] == [[b"first", b"second"]] * 2
    again = client_request("0.3", b"echo", [b"first", b"second"], id=(99).to_bytes(8, "big"), options=encode_options({"key": b"other"}))
    (octets,) = scene.machine.receive(batch(b"d", again), scene.now)[b"w"]
    flags, at = [], 0
    while at < len(octets):
        flag, _, at = frame_at(octets, at)
        flags.append(flag)
    assert flags == [MORE, MORE, MORE, 0], "one message"
