"""Two brokers that borrow of each other, back to back, in random walks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mdp.wire.commands import (
    CLIENT_FINAL_03,
    WORKER_FINAL_03,
    WORKER_READY_03,
)
from mdp.wire.options import encode_options
from tests.scenes.mdp_lending import Scene, offer_of, plain


class Pair:
    """Two brokers that borrow of each other, joined without sockets, and a worker at each when the test says so."""

    def __init__(self) -> None:
        self.sides = {name: Scene(name=name, deliveries_max=1000) for name in (b"A", b"B")}
        self.waiting: set[tuple[bytes, int]] = set()
        self.held: dict[bytes, list[list[bytes]]] = {b"A": [], b"B": []}
        self.up = {b"A": True, b"B": True}  # whether A's, B's link to the other stands
        self.number = 0

    def run(self, name: bytes, messages: list[list[bytes]]) -> None:
        side, other = self.sides[name], b"B" if name == b"A" else b"A"
        to_peers, side.to_peers = side.to_peers, []
        for frames in messages:
            if frames[0] == b"worker":
                if frames[1][:7] == b"MDPW03\x02":
                    self.held[name].append(frames)
            elif frames[0] == b"client":
                assert frames[1][:7] == CLIENT_FINAL_03, frames
                self.waiting.remove((name, int.from_bytes(frames[1][7:], "big")))  # KeyError: a second reply
            elif self.up[other]:  # the link of the other broker, a client of ours
                self.run(other, self.sides[other].out(self.sides[other].lending.on_answers("peer", [frames[1:]], 0.0)))
        for one in to_peers:
            frames = plain([one.frames])[0]
            self.run(other, self.sides[other].say(b"link", *frames))

    def step(self, verb: str, name: bytes) -> None:
        side, other = self.sides[name], b"B" if name == b"A" else b"A"
        match verb:
            case "ask":
                self.number += 1
                self.waiting.add((name, self.number))
                self.run(name, side.ask(self.number, options=encode_options({"wait": True})))
            case "worker":
                self.held[name].clear()
                self.run(name, side.out(side.machine.peer_lost(b"worker", 0.0)))
                self.run(name, side.say(b"worker", WORKER_READY_03, b"echo", encode_options({"credit": 2})))
            case "work" if self.held[name]:
                frames = self.held[name].pop(0)
                self.run(name, side.say(b"worker", WORKER_FINAL_03 + frames[1][7:], b"done"))
            case "offer" if self.up[name]:
                offer = offer_of(self.sides[other].machine, 1000)
                side.lending.on_query_sent("peer")
                self.run(name, side.out(side.lending.on_offer("peer", [b"200", *offer], 0.0)))
            case "cut":
                self.up[name] = False
                self.run(name, side.out(side.lending.on_peer_lost("peer", 0.0)))
                self.run(other, self.sides[other].out(self.sides[other].machine.peer_lost(b"link", 0.0)))
            case "join":
                self.up[name] = True


VERBS = st.tuples(st.sampled_from(["ask", "worker", "work", "offer", "cut", "join"]), st.sampled_from([b"A", b"B"]))


@given(st.lists(VERBS, max_size=40))
def test_two_brokers_that_borrow_of_each_other_lose_nothing(steps: list[tuple[str, bytes]]) -> None:
    """Whatever happens in whatever order, every request is answered once, by a worker somewhere."""
    pair = Pair()
    for verb, name in steps:
        pair.step(verb, name)
    for name in pair.sides:
        pair.step("cut", name)
    for name in pair.sides:
        pair.step("worker", name)
        while pair.held[name]:
            pair.step("work", name)
    assert not pair.waiting
    assert all(side.machine.idle for side in pair.sides.values())
