"""The machine of a broker of `peering`, with workers and peers of which a test says when what comes."""

from __future__ import annotations

from typing import Any

from core.machine.envelope import READY
from peering.task import Side
from peering.task_router import Effect, Publish, RouterLimits, TaskRouter

__all__ = ["Scene", "published"]

LOCAL, CLOUD = Side


class Scene:
    """A broker named DC1 with DEALER workers and peers; the test sets the time."""

    def __init__(self, *peers: bytes, workers: int = 0, **limits: Any) -> None:
        self.now = 0.0
        self.one = TaskRouter(b"DC1", RouterLimits(**limits), first_number=6)
        for peer in peers:
            self.one.add_peer(peer)
            self.one.peer_joined(peer, 0.0)
        for number in range(workers):
            self.one.worker([b"w%d" % number, READY], 0.0)

    def heard(self, peer: bytes, idle: int) -> list[Effect]:
        return self.plain(self.one.peer_state(peer, [peer, b"%d" % idle], self.now))

    def task(self, client: bytes = b"c", body: bytes = b"x") -> list[Effect]:
        return self.plain(self.one.task(LOCAL, [client, b"", body], self.now))

    def cloud(self, peer: bytes = b"DC2", client: bytes = b"c", body: bytes = b"x") -> list[Effect]:
        return self.plain(self.one.task(CLOUD, [peer, client, b"", body], self.now))

    def worker(self, *frames: bytes) -> list[Effect]:
        return self.plain(self.one.worker(list(frames), self.now))

    def reply(self, *frames: bytes) -> list[Effect]:
        return self.plain(self.one.peer_reply(list(frames), self.now))

    @staticmethod
    def plain(effects: list[Effect]) -> list[Effect]:
        return [effect for effect in effects if not isinstance(effect, Publish)]


def published(effects: list[Effect]) -> list[bytes]:
    return [effect.frames[1] for effect in effects if isinstance(effect, Publish)]
