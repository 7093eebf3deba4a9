"""Two Titanics with everything that can happen to them, as a graph that is searched whole.

It walks on the shipped
`titanic.mirror.succession`.

What Binary Star does is left out but for one thing: with a witness there are never two active at once. Anybody may become active at
any time, which is more than can happen. Crashes, cuts of the line, and lapses come at any moment; a crash keeps the marks and the records.

A record is (acknowledged, held by 0, held by 1); what kinds of records there are is all that counts. Epochs are kept small by taking the
lower from both, since only their order and distance matter. So there are few enough states to visit every one, without any bound.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, NamedTuple

from titanic.journal.ownership import Mark, Step
from titanic.mirror.succession import Answer, Lineage, LineageKind, Role, judge, led_mark, lineage_of, role_of

if TYPE_CHECKING:
    from collections.abc import Iterator

STORE = b"s" * 16


class Phase(IntEnum):
    """Activity of a process."""

    MIRROR = 0
    AGREED = 1  # the other one has said: lead
    PROMISED = 2  # serves by its own right, and is about to write that down
    LATE = 3  # has written it down, and finds that it is not active any more
    OPENED = 4  # is the store, and waits for its mirror
    SERVES = 5


class Promised(IntEnum):
    """The promise of a mirror."""

    NONE = 0
    RUNS = 1
    LAPSED = 2


class Part(IntEnum):
    """Progress of a session."""

    HELLO = 0
    CHANGING = 1
    STEPPED = 2
    LIVE = 3


class Node(NamedTuple):
    """One of the two."""

    mark: Mark | None = None
    holds: bool = False  # there is a manifest
    up: bool = True
    active: bool = False
    phase: Phase = Phase.MIRROR
    promise: Promised = Promised.NONE
    over: bool = False  # its timeout
    before: Mark | None = None  # what to go back to when it was too late

    @property
    def lineage(self) -> Lineage:
        return lineage_of(self.mark, STORE if self.holds else b"")


Records = frozenset[tuple[bool, bool, bool]]


class World(NamedTuple):
    """Both nodes, the session between them as (leader, progress), and the records."""

    nodes: tuple[Node, Node]
    session: tuple[int, Part] | None = None
    records: Records = frozenset()

    def put(self, n: int, **changed: Any) -> World:
        nodes = list(self.nodes)
        nodes[n] = nodes[n]._replace(**changed)
        return self._replace(nodes=(nodes[0], nodes[1]))


class Rules(NamedTuple):
    """Properties to hold, and bugs that may be put in.

    Attributes:
        go_on: the policy of each.
        witness: never two active.
        bug: name of a mistake, "" for none.
    """

    go_on: tuple[bool, bool]
    witness: bool
    bug: str = ""


def holds(record: tuple[bool, bool, bool], n: int) -> bool:
    return record[1 + n]


def held(record: tuple[bool, bool, bool], n: int, held_now: bool) -> tuple[bool, bool, bool]:
    return (record[0], held_now, record[2]) if n == 0 else (record[0], record[1], held_now)


def steps(world: World, rules: Rules) -> Iterator[tuple[str, World]]:
    """Yield everything that can happen next: (name, world); names of faults begin with an exclamation mark."""
    for n in (0, 1):
        node = world.nodes[n]
        if not node.up:
            yield "start", world.put(n, up=True)
            continue
        yield "!crash", _ended(world, n).put(n, up=False, active=False, phase=Phase.MIRROR, promise=Promised.NONE, over=False, before=None)
        yield from _roles(world, n, rules)
        yield from _turns(world, n, rules)
        yield from _joining(world, n, rules)
        yield from _work(world, n, rules)
    if world.session is not None:
        yield "!cut", world._replace(session=None)


def _ended(world: World, n: int) -> World:
    """End the session: each is in every one."""
    return world._replace(session=None)


def _roles(world: World, n: int, rules: Rules) -> Iterator[tuple[str, World]]:
    node, other = world.nodes[n], world.nodes[1 - n]
    # What a process is at belongs to the ballot under which it began: it is never active in it again.
    begins = node.phase is Phase.MIRROR or rules.bug == "any ballot"
    if not node.active and begins and not (rules.witness and other.active):
        yield "active", world.put(n, active=True)
    if node.active:
        yield "!passive", world.put(n, active=False)
    elif node.phase is Phase.LATE:
        yield "undo", world.put(n, mark=node.before if node.before is not None else node.mark, phase=Phase.MIRROR, before=None)
    elif node.phase is not Phase.MIRROR:
        yield "step down", _ended(world, n).put(n, phase=Phase.MIRROR, over=False)
        if node.phase in (Phase.AGREED, Phase.PROMISED):  # the write had begun when the role was lost
            yield "late", world.put(n, mark=_raised(node), before=node.mark, phase=Phase.LATE)


def _raised(node: Node) -> Mark:
    return led_mark(node.mark, node.lineage, alone=node.phase is Phase.PROMISED)


def _turns(world: World, n: int, rules: Rules) -> Iterator[tuple[str, World]]:
    node, other = world.nodes[n], world.nodes[1 - n]
    if not node.active:
        return
    if node.phase is Phase.MIRROR:
        leased = node.promise is Promised.RUNS or (rules.bug == "no promise" and node.lineage.kind is LineageKind.WHOLE)
        if role_of(node.lineage, go_on=rules.go_on[n], leased=leased) is Role.SERVE:
            yield "serve", _ended(world, n).put(n, phase=Phase.PROMISED)
        elif other.up and other.phase is Phase.MIRROR:
            answer = judge(other.lineage, node.lineage)
            asked = _ended(world, n)
            if answer is Answer.FOLLOW or rules.bug == "never ask":
                yield "agree", asked.put(n, phase=Phase.AGREED)
            elif answer is Answer.LEAD:
                yield "give way", asked.put(n, active=False)
    elif node.phase in (Phase.AGREED, Phase.PROMISED):
        alone = node.phase is Phase.PROMISED
        phase = Phase.SERVES if alone else Phase.OPENED
        mark = _raised(node)._replace(store=STORE)
        yield "open", world.put(n, mark=mark, holds=True, phase=phase, over=alone, promise=Promised.NONE)


def _joining(world: World, n: int, rules: Rules) -> Iterator[tuple[str, World]]:
    node, o = world.nodes[n], 1 - n
    other = world.nodes[o]
    if node.phase not in (Phase.OPENED, Phase.SERVES) or node.mark is None:
        return
    mark, there = node.mark, other.mark
    if world.session is None and other.up and other.phase is Phase.MIRROR:
        theirs = Lineage(mark.epoch, LineageKind.SOLE if mark.alone else LineageKind.WHOLE, STORE)
        answer = judge(other.lineage, theirs)
        if answer is Answer.FOLLOW or rules.bug == "never judge":
            begun = world._replace(session=(n, Part.HELLO)).put(o, promise=Promised.NONE)
            if mark.alone and there is not None and there.role == "mirror" and there.step is Step.IN_STEP:
                begun = begun.put(o, mark=there._replace(step=Step.BEHIND))
            yield "hello", begun
        elif answer is Answer.LEAD and node.active:
            yield "stale", world.put(n, active=False)
    if world.session is None or world.session[0] != n:
        return
    part = world.session[1]
    if part is Part.HELLO:
        lost = frozenset(held(record, o, False) for record in world.records)
        changing = Mark("mirror", mark.epoch, Step.CHANGING, store=STORE)
        yield "swap", world._replace(session=(n, Part.CHANGING), records=lost).put(o, mark=changing)
    elif part is Part.CHANGING:
        same = frozenset(held(record, o, holds(record, n)) for record in world.records)
        assert there is not None
        in_step = there._replace(step=Step.IN_STEP)
        yield "in step", world._replace(session=(n, Part.STEPPED), records=same).put(o, mark=in_step, holds=True)
    elif part is Part.STEPPED:
        live = world._replace(session=(n, Part.LIVE)).put(n, over=False, phase=Phase.SERVES)
        yield "live", live if rules.bug == "stays alone" else live.put(n, mark=mark._replace(alone=False))


def _work(world: World, n: int, rules: Rules) -> Iterator[tuple[str, World]]:
    node, o = world.nodes[n], 1 - n
    other = world.nodes[o]
    if node.promise is Promised.RUNS:
        yield "!lapse", world.put(n, promise=Promised.LAPSED)
    if node.phase is not Phase.SERVES or node.mark is None:
        return
    live = world.session == (n, Part.LIVE)
    if world.session in ((n, Part.CHANGING), (n, Part.STEPPED)):
        return  # the thread that would write is the one that exchanges files
    if live:
        yield "pulse", world.put(o, promise=Promised.RUNS).put(n, over=False)
        yield "copy", world._replace(records=frozenset(held(r, o, holds(r, n)) for r in world.records))
    if not node.over and (other.promise is not Promised.RUNS or rules.bug == "no patience"):
        yield "patience", world.put(n, over=True)
    if node.active and node.over and not live and rules.go_on[n] and not node.mark.alone:
        yield "alone", world.put(n, mark=node.mark._replace(alone=True))
    yield "write", world._replace(records=world.records | {held((False, False, False), n, True)})
    for record in world.records:
        both = holds(record, 0) and holds(record, 1)
        if node.active and not record[0] and holds(record, n) and ((live and both) or (node.mark.alone and rules.go_on[n])):
            yield "acknowledge", world._replace(records=world.records - {record} | {(True, *record[1:])})


def settled(world: World) -> World:
    """Return the same world in normal form: minimal epochs, no records that neither node has."""
    marks = [node.mark for node in world.nodes]
    epochs = [mark.epoch for mark in marks if mark is not None and mark.step is not Step.EMPTY]
    low = min(epochs) - 1 if len(epochs) == 2 else 0
    if low > 0:
        for n in (0, 1):
            node = world.nodes[n]
            assert node.mark is not None
            before = node.before._replace(epoch=node.before.epoch - low) if node.before is not None else None
            world = world.put(n, mark=node.mark._replace(epoch=node.mark.epoch - low), before=before)
    return world._replace(records=frozenset(r for r in world.records if any(r)))


def wrong(world: World) -> str:
    """Return the error of a world, "" for none: a node that may answer has everything that was acknowledged."""
    for n in (0, 1):
        node = world.nodes[n]
        if node.active and node.phase is Phase.SERVES and any(record[0] and not holds(record, n) for record in world.records):
            return f"{n} serves without what was acknowledged"
    return ""


def serves(world: World, rules: Rules) -> bool:
    """Return whether a request could be acknowledged at this moment."""
    for n in (0, 1):
        node = world.nodes[n]
        if node.active and node.phase is Phase.SERVES and node.mark is not None:
            if world.session == (n, Part.LIVE) or (rules.go_on[n] and node.mark.alone):
                return True
    return False


class Found(NamedTuple):
    """Result of a search.

    Attributes:
        states, transitions: how many.
        path: to the first world that is wrong, names of steps; empty if there is none.
        dead_ends: worlds from which nobody serves again, whatever happens but faults.
    """

    states: int
    transitions: int
    path: list[str]
    dead_ends: list[World]


def search(rules: Rules, begin: World, states_max: int = 10_000_000) -> Found:
    """Visit every world that can be reached; stops at the first one that is wrong."""
    begin = settled(begin)
    came: dict[World, tuple[World, str] | None] = {begin: None}
    back: dict[World, list[World]] = {}
    layer, transitions = [begin], 0
    while layer and len(came) < states_max:
        following: list[World] = []
        for world in layer:
            for name, after in steps(world, rules):
                after = settled(after)
                transitions += 1
                if not name.startswith("!"):
                    back.setdefault(after, []).append(world)
                if after not in came:
                    came[after] = (world, name)
                    following.append(after)
                    if wrong(after):
                        return Found(len(came), transitions, _path(came, after), [])
        layer = following
    alive = [world for world in came if serves(world, rules)]
    seen = set(alive)
    while alive:
        for before in back.get(alive.pop(), ()):
            if before not in seen:
                seen.add(before)
                alive.append(before)
    return Found(len(came), transitions, [], [world for world in came if world not in seen])


def _path(came: dict[World, tuple[World, str] | None], world: World) -> list[str]:
    names: list[str] = []
    at: World = world
    while (step := came[at]) is not None:
        at, name = step
        names.append(name)
    return names[::-1]
