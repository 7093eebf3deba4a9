"""Sockets for one peer: a cloudbe for tasks, a statefe for its state.

Each peer has its own sockets, so the endpoint of each message is known, and messages queued for a removed peer are dropped with its
sockets. Peers cannot tell this from one socket for all.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import core
from core.rpc.connect_times import with_connect_times
from core.rpc.service import sent

if TYPE_CHECKING:
    from collections.abc import Callable

    from peering.wire import Endpoints


class PeerConnection:
    """Two connections to a peer."""

    def __init__(
        self,
        context: core.Context,
        name: bytes,  # of our broker, announced by cloudbe
        peer: bytes,
        endpoints: Endpoints,
        *,
        probe: dict[str, int],  # options of both sockets: when a silent connection is probed, and when it is closed and reconnected
        options: dict[str, Any],
        on_state: Callable[[bytes, list[bytes]], None],  # called with (peer, frames) for each state message
        on_reply: Callable[[list[bytes]], None],  # called with `[peer][client][""][body…]`
        on_change: Callable[[bytes, bool], None],  # called with (peer, whether tasks can be sent to it)
        on_stranger: Callable[[bytes, bytes], None],  # called with (peer, name) when the endpoint belongs to another broker
    ) -> None:
        self.endpoints = endpoints
        self._peer = peer
        self._on_state = on_state
        self._on_reply = on_reply
        self._on_change = on_change
        self._on_stranger = on_stranger
        # MANDATORY: a message that cannot be sent raises and goes to another peer (PEER-11). Nothing is queued for an absent peer.
        self._cloud = context.socket(
            core.ROUTER,
            **{"tell_limits": 1, **probe, **with_connect_times(options), "identity": name, "router_mandatory": 1, "linger": 0},
        )
        # It only listens: without a probe it would wait for ever at a connection that one side has forgotten.
        self._state = context.socket(core.SUB, **{**probe, **with_connect_times(options), "linger": 0})
        try:
            self._cloud.set_receiver(self._replied, on_peer=self._changed)
            self._state.setsockopt(core.SUBSCRIBE, b"")
            self._state.set_receiver(self._heard)
            self._cloud.connect(endpoints.cloud)
            self._state.connect(endpoints.state)
        except BaseException:
            self.close()
            raise

    def send(self, frames: list[bytes]) -> bool:
        """Send `[peer][client][""][body…]`; return whether it was sent. Raises MessageTooLarge."""
        return sent(self._cloud, frames)

    def close(self) -> None:
        """Close both sockets; no callback is called afterwards."""
        self._cloud.close(linger=0)
        self._state.close(linger=0)

    async def wait_closed(self) -> None:
        await asyncio.gather(self._cloud.wait_closed(), self._state.wait_closed())

    def _replied(self, batch: list[list[bytes]]) -> None:
        for frames in batch:
            if frames[0] == self._peer:
                self._on_reply(frames)

    def _heard(self, batch: list[list[bytes]]) -> None:
        for frames in batch:
            self._on_state(self._peer, frames)

    def _changed(self, name: bytes, joined: bool) -> None:
        if name == self._peer:
            self._on_change(self._peer, joined)
        elif joined:
            self._on_stranger(self._peer, name)
