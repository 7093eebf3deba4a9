"""A broker's machine with a lending machine, whose peers the test plays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack

from core.zmtp.frames import Encoded, decode_frames
from mdp.broker.dispatcher import Dispatcher
from mdp.broker.limits import BrokerOptions
from mdp.cluster.lending import LendingMachine, SendToPeer
from mdp.wire.commands import CLIENT_FINAL_03, CLIENT_REQUEST_03
from mdp.wire.lending import encode_offer
from tests.scenes.mdp_dispatcher import batch, decoded

if TYPE_CHECKING:
    from mdp.broker.requests.request_ends import Output


B = "tcp://b:5555"


C = "tcp://c:5555"


def offer_of(machine: Dispatcher, limit_bytes: int) -> list[bytes]:
    return encode_offer(machine.directory.name, machine.directory.capacities(), limit_bytes)


def plain(messages: list[list[bytes]]) -> list[list[bytes]]:
    return [[*message[:-1], *decode_frames(message[-1])] if isinstance(message[-1], Encoded) else message for message in messages]


class Scene:
    """A broker's machine with a lending machine; the test plays the peers."""

    def __init__(self, *, hops_max: int = 1, name: bytes = b"A", **limits: Any) -> None:
        self.machine = Dispatcher(BrokerOptions(**limits), first_number=1)
        self.lending = LendingMachine(self.machine, name, hops_max=hops_max)
        self.now = 0.0

    def say(self, peer: bytes, *frames: bytes) -> list[list[bytes]]:
        """A client or worker says something; what leaves on the socket."""
        return self.out(self.machine.receive(batch(peer, frames), self.now))

    def out(self, out: Output) -> list[list[bytes]]:
        to_peers = self.lending.take_for_peers(out)
        self.to_peers = [*to_peers, *self.lending.balance(self.now)]
        more = self.machine.take_output()
        self.to_peers += self.lending.take_for_peers(more)
        return [*decoded(out), *decoded(more)]

    def offer(self, link: str, name: bytes = b"B", **services: int) -> list[list[bytes]]:
        self.lending.on_query_sent(link)
        body = [b"200", name, msgpack.packb({key.encode(): count for key, count in services.items()})]
        return self.out(self.lending.on_offer(link, body, self.now))

    def ask(self, number: int, service: bytes = b"echo", options: bytes = b"", client: bytes = b"client") -> list[list[bytes]]:
        return self.say(client, CLIENT_REQUEST_03 + number.to_bytes(8, "big"), service, options, b"body")

    def answer(self, link: str, lent: SendToPeer, command: bytes, *body: bytes) -> list[list[bytes]]:
        return self.out(self.lending.on_answers(link, [[command + lent.frames[0][7:], *body]], self.now))

    def lent(self) -> SendToPeer:
        (one,) = self.to_peers
        return one


def reply(number: int, *body: bytes) -> list[bytes]:
    return [b"client", CLIENT_FINAL_03 + number.to_bytes(8, "big"), *body]
