"""A broker's machine and workers that announce their concurrency."""

from __future__ import annotations

from mdp.wire.commands import worker_ready
from mdp.wire.events import Ping, Recall, Work
from mdp.wire.options import encode_options
from tests.scenes.mdp_dispatcher import ECHO, Scene

__all__ = ["Shop"]


class Shop(Scene):
    """Workers with a concurrency, which tell it."""

    def join(self, peer: bytes, concurrency: int, credit: int = 0) -> None:
        told = {"credit": credit or 4 * concurrency, "concurrency": concurrency}
        self.send(peer, worker_ready("0.3", ECHO, options=encode_options(told)))

    def given(self, peer: bytes) -> list[Work]:
        """Take the requests a worker was sent."""
        events = [event for event in self.at_worker(peer) if not isinstance(event, Ping)]
        assert all(isinstance(event, Work) for event in events), events
        return [event for event in events if isinstance(event, Work)]

    def recalled(self, peer: bytes) -> list[bytes]:
        """Take the tokens a worker was asked for."""
        events = self.at_worker(peer)
        assert all(isinstance(event, Recall) for event in events), events
        return [event.id for event in events if isinstance(event, Recall)]
