"""Rights that each verb needs, refusals, and peers that are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgpack
import pytest

from core.zmtp.frames import MORE, frame_at
from mdp.access.rules import Rights, Rules
from mdp.broker.authorization import GuardedDispatcher, Refusal
from mdp.broker.recorder import Recorder
from mdp.eventlog.format import Clock, Event, events_of
from mdp.wire.commands import client_request, worker_error, worker_ready
from mdp.wire.events import Work
from mdp.wire.options import decode_request_options, encode_options
from tests.mdp.broker.test_authorization import Guarded
from tests.mdp.broker.workers.test_channels import on
from tests.scenes.mdp_dispatcher import DIALECTS, batch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mdp.wire.commands import Dialect

RULES: dict[str, list[dict[str, object]]] = {
    "allow": [
        {"who": ["web"], "call": ["echo"]},
        {"who": ["desk"], "serve": ["echo"], "see_users": ["echo"]},
        {"who": ["root"], "manage": ["echo"]},
        {"who": ["news"], "call": ["mmi.stats"]},
        {"who": ["store"], "call": ["echo"], "pass_users": ["echo"]},
    ]
}
USERS = {b"c": "web", b"r": "root", b"n": "news", b"s": "store", b"v": "visitor", b"V": "visitor"}
USERS |= dict.fromkeys((b"w", b"W", b"other worker"), "desk")


def scene_with(rules: Mapping[str, object] = RULES, **options: float | bool) -> Guarded:
    scene = Guarded(Rules(rules), manage=True, **options)
    scene.users |= USERS
    return scene


def refused(scene: Guarded) -> list[Refusal | tuple[bytes, str | None, str, bytes]]:
    """Take the refusals of one machine; the other has as many."""
    taken = [*scene.refusals]
    scene.refusals.clear()
    assert len(taken) % 2 == 0
    return [*taken[::2]]


def counted_rights(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Return a list of the users whose rights are computed from now on."""
    asked: list[str | None] = []
    rights_of = Rules.rights_of

    def counted(rules: Rules, user: str | None) -> Rights:
        asked.append(user)
        return rights_of(rules, user)

    monkeypatch.setattr(Rules, "rights_of", counted)
    return asked


def mmi(scene: Guarded, peer: bytes, name: str, *body: bytes) -> bytes:
    """Return the code that MMI answers."""
    scene.ask("0.3", peer, *body, service=f"mmi.{name}".encode())
    return scene.reply(peer)[0]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_who_may_not_serve_is_disconnected(dialect: Dialect) -> None:
    scene = scene_with()
    scene.ready(dialect, b"v")
    assert scene.is_sent_away(b"v")
    assert scene.counters["forbidden_serve"] == 1
    assert refused(scene) == [(b"v", "visitor", "serve", b"echo")]
    assert not scene.machine.directory.workers


def test_a_channel_has_the_rights_of_its_connection() -> None:
    scene = scene_with()
    ready = worker_ready("0.3", b"echo", options=encode_options({"credit": 2}))
    scene.send(b"V", on(1, ready))
    assert refused(scene) == [(b"V", "visitor", "serve", b"echo")]
    assert scene.counters["forbidden_serve"] == 1
    scene.send(b"W", on(1, ready))
    assert not scene.refusals
    assert len(scene.machine.directory.workers) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
def test_new_rules_disconnect_who_may_no_longer_serve(dialect: Dialect) -> None:
    scene = scene_with(queue_ms=3_600_000.0)
    scene.ready(dialect, b"w")
    scene.got(b"w")
    scene.set_rules({"allow": [{"who": ["web"], "call": ["echo"]}]})
    assert scene.is_sent_away(b"w")
    assert scene.counters["forbidden_serve"] == 1
    assert not scene.machine.directory.workers
    scene.check()


def test_a_request_at_a_worker_is_answered_although_new_rules_forbid_it() -> None:
    scene = scene_with()
    scene.ready("0.3", b"w")
    scene.ask("0.3", b"c", b"x")
    scene.set_rules({"allow": [{"who": ["desk"], "serve": ["echo"]}]})
    assert refused(scene) == []
    scene.answer(b"w", scene.work(b"w"), b"y")
    assert scene.reply(b"c") == [b"y"]
    scene.ask("0.3", b"c", b"x")
    assert scene.failure(b"c") == "FORBIDDEN"


def test_the_same_request_again_is_dropped_whatever_the_rules_have_become() -> None:
    scene = scene_with()
    scene.ready("0.3", b"w")
    request = client_request("0.3", b"echo", [b"x"], id=(7).to_bytes(8, "big"))
    scene.send(b"c", request)
    scene.set_rules({"allow": [{"who": ["desk"], "serve": ["echo"]}]})
    scene.send(b"c", request)
    assert scene.counters["dropped_duplicate"] == 1
    assert refused(scene) == []
    assert scene.at_client(b"c") == []


def test_a_refused_request_is_answered_counted_and_recorded() -> None:
    scene = scene_with()
    events: list[Event] = []
    scene.machine.request_table.recorder = Recorder(lambda block: events.extend(events_of(block, Clock(0, 0.0))))
    scene.ready("0.3", b"w")
    scene.ask("0.3", b"v", b"12345")
    assert scene.failure(b"v") == "FORBIDDEN"
    scene.ask("0.2", b"v", b"12345")
    assert scene.at_client(b"v") == []
    assert (scene.counters["error_forbidden"], scene.counters["silent_forbidden"]) == (1, 1)
    ends = [event for event in events if not event.kind.startswith("worker")]
    assert [(event.service, event.code, event.request_bytes) for event in ends] == [("echo", "FORBIDDEN", 9), ("echo", "FORBIDDEN", 7)]


def test_what_mmi_needs() -> None:
    """Each row of the table in `docs/security.md`, for each user."""
    scene = scene_with()
    scene.ready("0.3", b"w")
    keys = msgpack.packb([b"k"])
    allowed: dict[tuple[str, tuple[bytes, ...]], bytes] = {
        ("service", (b"echo",)): b"crws",
        ("keys", (keys, b"echo")): b"cs",
        ("stats", (b"",)): b"rn",
        ("services", (b"",)): b"r",
        ("lending", (b"",)): b"r",
        ("enable", (b"echo",)): b"r",
        ("allowed", (b"call", b"web", b"echo")): b"w",
        ("protocol", (b"0.3",)): b"crwnsv",
    }
    for (name, body), peers in allowed.items():
        codes = {peer: mmi(scene, bytes([peer]), name, *body) for peer in b"crnsv"}
        codes[ord("w")] = mmi(scene, b"other worker", name, *body)
        assert {peer for peer, code in codes.items() if code != b"403"} == {*peers}, name
    denied = sum(len(b"crnsvw") - len(peers) for peers in allowed.values())
    assert scene.counters["forbidden_mmi"] == denied
    assert scene.counters["mmi"] == sum(map(len, allowed.values())) + len(b"crnsv")  # `mmi.allowed` is counted, then judged


def test_mmi_service_needs_no_more_than_one_right_to_the_service() -> None:
    for right in ("call", "serve", "manage"):
        scene = scene_with({"allow": [{"who": ["web"], right: ["echo"]}]})
        assert mmi(scene, b"c", "service", b"echo") == b"404"
        assert mmi(scene, b"c", "service", b"other") == b"403"
        assert refused(scene) == [(b"c", "web", "call", b"other")]


def test_dead_letters_need_manage_of_their_service() -> None:
    scene = scene_with(deliveries_max=1)
    scene.users[b"o"] = "other"
    scene.set_rules({"allow": [*RULES["allow"], {"who": ["other"], "manage": ["else"]}]})
    scene.ready("0.3", b"w")
    scene.ask("0.3", b"c", b"x")
    scene.work(b"w")
    scene.lose(b"w")
    scene.wait(10.0)
    (letter,) = scene.machine.dead_letters
    number = b"%d" % letter.number
    assert mmi(scene, b"o", "dlq.show", number) == b"403"
    assert mmi(scene, b"o", "dlq.show", b"999") == b"403"
    assert refused(scene) == [(b"o", "other", "manage", b"echo"), (b"o", "other", "manage", b"")]
    assert mmi(scene, b"r", "dlq.show", number) == b"200"
    assert mmi(scene, b"o", "drain", b"echo") == b"403"
    assert mmi(scene, b"o", "dlq.drop", number) == b"403"
    assert mmi(scene, b"r", "dlq.drop", number) == b"200"


def test_only_who_sees_users_may_ask_what_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = scene_with()
    assert mmi(scene, b"c", "allowed", b"call", b"web", b"echo") == b"403"
    assert refused(scene) == [(b"c", "web", "see_users", b"mmi.allowed")]
    assert scene.counters["forbidden_mmi"] == 1
    asked = counted_rights(monkeypatch)
    monkeypatch.setattr("mdp.broker.authorization._REMEMBERED_MAX", 4)
    answers = [mmi(scene, b"w", "allowed", b"call", b"%s" % user, b"echo") for user in (b"web", b"visitor", b"", b"store", b"web")]
    assert answers == [b"200", b"404", b"404", b"200", b"200"]
    assert asked == ["desk", "web", "desk", "web", "visitor", "visitor", None, None, "store", "store"]  # once by each machine
    mmi(scene, b"w", "allowed", b"call", b"fifth", b"echo")
    assert mmi(scene, b"w", "allowed", b"call", b"web", b"echo") == b"200"
    assert asked[10:] == ["fifth", "fifth", "web", "web"], "four users are remembered, then none"
    scene.set_rules({"allow": [{"who": ["desk"], "see_users": ["echo"]}]})
    assert mmi(scene, b"w", "allowed", b"call", b"web", b"echo") == b"404"


def test_users_of_one_peer_are_apart_and_one_is_believed_with_the_right_alone() -> None:
    """A refusal is written once for each peer, and again under new rules or when it has come anew."""
    scene = scene_with()
    scene.ready("0.3", b"w", credit=9)
    for peer in (b"s", b"c"):
        for user in ("ann", "bob", "ann"):
            scene.ask("0.3", peer, b"x", options={"key": b"k", "user": user})
        scene.ask("0.3", peer, b"x", options={"key": b"k"})
    works = [event for event in scene.at_worker(b"w") if isinstance(event, Work)]
    told = [decode_request_options(work.options, amended=True) for work in works]
    assert [one.user for one in told] == ["ann", "bob", "store", "web", "web", "web"]
    assert len({one.owner for one in told}) == 6
    assert refused(scene) == [(b"c", "web", "pass_users", b"echo")]
    scene.set_rules(RULES)
    scene.ask("0.3", b"c", b"x", options={"user": "ann"})
    assert len(refused(scene)) == 1
    scene.lose(b"c")
    scene.ask("0.3", b"c", b"x", options={"user": "ann"})
    assert len(refused(scene)) == 1


def test_nothing_is_kept_of_a_peer_that_is_gone() -> None:
    """Another may come with its routing id: a key of the one before it is none of its keys."""
    scene = scene_with()
    scene.ready("0.3", b"w", credit=9)
    scene.ask("0.3", b"c", b"x", options={"key": b"k", "user": "ann"})
    scene.ask("0.3", b"c", b"x", options={"key": b"k"})
    scene.lose(b"c")
    scene.users[b"c"] = "store"
    scene.ask("0.3", b"c", b"x", options={"key": b"k"})
    works = [event for event in scene.at_worker(b"w") if isinstance(event, Work)]
    assert [decode_request_options(work.options, amended=True).user for work in works] == ["web", "web", "store"]
    scene.lose(b"c")
    scene.lose(b"w")
    machine = scene.machine
    assert isinstance(machine, GuardedDispatcher)
    # `dir`, because an object of a compiled class has no `__dict__`.
    tables = {name: kept for name in dir(machine) if isinstance(kept := getattr(machine, name), dict | set) and name != "__dict__"}
    assert {"_rights", "_users"} <= tables.keys()
    assert {name for name, kept in tables.items() if b"c" in kept or b"w" in kept} == set()


def test_rights_are_computed_once_for_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = counted_rights(monkeypatch)
    scene = scene_with()
    for _ in range(3):
        scene.ask("0.3", b"v", b"x")
    assert asked == ["visitor"] * 2  # by both machines


def test_so_many_services_are_remembered_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mdp.broker.authorization._REMEMBERED_MAX", 4)
    scene = Guarded()
    for number in range(9):
        scene.ready("0.3", b"w%d" % number, b"e%d" % number)
    assert isinstance(scene.machine, GuardedDispatcher)
    sizes = []
    for number in range(9):
        scene.known("0.3", service=b"e%d" % number)
        sizes.append(len(scene.machine.routes_of(b"c")))
    assert sizes == [2, 4, 6, 8, 2, 4, 6, 8, 2]  # each under two names


def test_a_handlers_error_and_a_refusal_are_two_things() -> None:
    scene = scene_with()
    scene.ready("0.3", b"w")
    scene.ask("0.3", b"c", b"x")
    scene.send(b"w", worker_error(scene.work(b"w").id, "FORBIDDEN", "says the handler"))
    assert scene.failure(b"c") == "FORBIDDEN"
    assert refused(scene) == []
    assert scene.counters["error_forbidden"] == 0


def test_a_request_with_its_user_is_one_message() -> None:
    scene = scene_with()
    scene.ready("0.3", b"w", credit=9)
    for entries in ({}, {"deadline_ms": 500}):
        octets = encode_options(entries)
        request = client_request("0.3", b"echo", [b"first", b"last"], id=(50 + len(entries)).to_bytes(8, "big"), options=octets)
        (piece,) = scene.machine.receive(batch(b"c", request), scene.now)[b"w"]
        flags, frames, at = [], [], 0
        while at < len(piece):
            flag, start, at = frame_at(piece, at)
            flags.append(flag)
            frames.append(piece[start:at])
        assert flags == [MORE, MORE, MORE, 0]
        told = decode_request_options(frames[1], amended=True)
        assert (told.user, told.deadline_ms, told.delivery) == ("web", entries.get("deadline_ms"), 1)
        assert "delivery" not in msgpack.unpackb(frames[1])
        assert frames[2:] == [b"first", b"last"]
