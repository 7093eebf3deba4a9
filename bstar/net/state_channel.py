"""State channel: XPUB to the peer and to watchers, SUB from the peer (BST-05, BST-17, BST-18, BST-38).

Nothing is decided here. Of messages that arrive together only the newest of each kind is delivered, the ballot message before the digit.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import core
from bstar.errors import MalformedMessage
from bstar.machine.wire import DIGITS, SIGNED_STATE_TOPIC, STATE_TOPIC, decode_state, encode_digit, encode_state, signed_by
from core.rpc.connect_times import with_connect_times
from core.sockets.monitor import TROUBLES

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from bstar.machine.fsm import State
    from bstar.machine.signing import Trust
    from bstar.machine.wire import StateMessage


class StateChannel:
    """Both sockets of one server."""

    def __init__(
        self,
        context: core.Context,
        local: str,
        remote: str,  # endpoint of the peer's publisher
        *,
        ballots: bool,  # False for digits only
        trust: Trust,  # in the peer, with the key for messages; they are published unsigned too, for subscribers of that topic
        on_message: Callable[[StateMessage], None],  # called with the newest state message
        on_watcher: Callable[[], None],  # called after a new subscription: publish the state now
        on_link: Callable[[bool], None],  # called when we are connected to the peer, and with False when an attempt to connect has failed
        counters: Counter[str],  # `state_malformed`, `state_unsigned`, `state_drained` are counted here
        socket_options: dict[str, Any],
    ) -> None:
        self._ballots = ballots
        self._trust = trust
        self._on_message = on_message
        self._on_watcher = on_watcher
        self._on_link = on_link
        self._counters = counters
        self._topics: set[bytes] = set()  # topics with subscribers
        self._newest: dict[bool, StateMessage] = {}  # by whether it is a ballot message
        self._watchers_new = False
        self._handle: asyncio.Handle | None = None
        self._out = context.socket(core.XPUB, **{**socket_options, "xpub_verbose": 1, "linger": 0})
        self._in = context.socket(core.SUB, **{**with_connect_times(socket_options), "linger": 0})
        try:
            self._out.bind(local)
            # The ballot topic first: of a peer that sends both forms the digit then never comes first.
            signed = (SIGNED_STATE_TOPIC,) if trust.key is not None else ()
            self._unsigned = () if trust.required else (STATE_TOPIC, *DIGITS)
            for topic in (*signed, *self._unsigned) if ballots else DIGITS:
                self._in.setsockopt(core.SUBSCRIBE, topic)
            self._in.set_receiver(self._on_state_messages, on_peer=self._on_peer)
            self._in.on_event(lambda _: on_link(False), TROUBLES)
            self._out.set_receiver(self._on_subscriptions)
            self._in.connect(remote)
        except BaseException:
            self.close()
            raise

    @property
    def endpoint(self) -> str:
        return self._out.last_endpoint

    def publish(self, digit: State, message: StateMessage, *, peer_is_stock: bool) -> None:
        """Publish the state in the forms that have subscribers."""
        if self._ballots and not peer_is_stock:
            if self._trust.key is not None and self._wanted(SIGNED_STATE_TOPIC):
                self._out.send_multipart([encode_state(message, self._trust.key)])
            if self._wanted(STATE_TOPIC):
                self._out.send_multipart([encode_state(message)])
        octets = encode_digit(digit)
        if b"" in self._topics or octets in self._topics:
            self._out.send_multipart([octets])

    def _wanted(self, form: bytes) -> bool:
        return any(topic and form.startswith(topic) for topic in self._topics)

    def close(self) -> None:
        self._in.close()
        self._out.close(linger=200)  # the last message may ask the peer to take over
        if self._handle is not None:
            self._handle.cancel()

    async def wait_closed(self) -> None:
        await asyncio.gather(self._in.wait_closed(), self._out.wait_closed())

    def _on_subscriptions(self, batch: list[list[bytes]]) -> None:
        for frames in batch:
            report = bytes(frames[0])
            if report[:1] == b"\x01":
                self._topics.add(report[1:])
                self._watchers_new = True
            elif report[:1] == b"\x00":
                self._topics.discard(report[1:])
        self._deliver_soon()

    def _on_state_messages(self, batch: list[list[bytes]]) -> None:
        for frames in batch:
            try:
                message = decode_state(frames)
            except MalformedMessage:
                self._counters["state_malformed"] += 1
                continue
            if not self._trust.admits(signed=signed_by(self._trust.key, frames[0])):
                self._counters["state_unsigned"] += 1
                continue
            if self._trust.required and self._unsigned:
                for topic in self._unsigned:  # the peer has the key: its unsigned messages are for others
                    self._in.setsockopt(core.UNSUBSCRIBE, topic)
                self._unsigned = ()
            kind = message.node != 0
            if kind in self._newest:
                self._counters["state_drained"] += 1
            self._newest[kind] = message
        self._deliver_soon()

    def _on_peer(self, _: bytes, joined: bool) -> None:
        if joined:
            self._on_link(True)
        else:
            self._newest.clear()  # messages of a lost connection may be older than the next ones

    def _deliver_soon(self) -> None:
        """Deliver after everything that can be read now was read, so that only the newest message is delivered."""
        if self._handle is None:
            self._handle = asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._handle = None
        newest, self._newest = self._newest, {}
        for kind in (True, False):
            if kind in newest:
                self._on_message(newest[kind])
        if self._watchers_new:
            self._watchers_new = False
            self._on_watcher()
