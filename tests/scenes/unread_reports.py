"""A model of the reports that the application of an XPUB has not received, for a high-water mark of 2."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["UnreadReports"]

MARK = 2
TOPIC_COST = 256
Peer = TypeVar("Peer")
KINDS = (b"\x00", b"\x01")


class UnreadReports(Generic[Peer]):
    """A queue of what was not received, and the reports beyond the mark by topic.

    Attributes:
        arrivals: the queue.
        batch: what comes to these.
        later: at most an end and a begin for each topic.
    """

    def __init__(self, *, alternates: bool, most: int) -> None:
        self.arrivals: list[tuple[Peer, list[bytes]]] = []
        self.batch: list[tuple[Peer, list[bytes]]] = []
        self.later: dict[bytes, list[tuple[Peer, list[bytes]]]] = {}
        self._alternates = alternates
        self._most = most

    def follow(self, *, alternates: bool, most: int) -> None:
        """Follow the options: whether begin and end are reported in turn, and the bytes beyond the mark."""
        self._alternates, self._most = alternates, most
        if not alternates:
            self._queue_later()

    def taken(self) -> None:
        """Queue the reports beyond the mark when the queue is empty."""
        if not self.arrivals:
            self._queue_later()

    def add(self) -> int:
        """Add what a peer sent; return how often it is paused."""
        batch, self.batch = self.batch, []
        shown = []
        put_off = bool(self.later) or (self._alternates and len(self.arrivals) >= MARK)
        for peer, message in batch:
            if put_off and len(message) == 1 and message[0][:1] in KINDS:
                self._put_off(peer, message)
            else:
                shown.append((peer, message))
        self.arrivals += shown
        upstream = any(message[0][:1] not in KINDS for _, message in shown)
        too_many = sum(len(kept) * (len(topic) + TOPIC_COST) for topic, kept in self.later.items()) > self._most
        full = bool(shown) and len(self.arrivals) >= MARK and (not self._alternates or upstream)
        return full + (put_off and too_many)

    def _put_off(self, peer: Peer, message: list[bytes]) -> None:
        topic, begins = message[0][1:], message[0][:1] == b"\x01"
        kept = self.later.setdefault(topic, [])
        last = kept[-1][1][0][:1] if kept else b""
        if last != b"\x01" and (begins or not kept):
            kept.append((peer, message))
        elif last == b"\x01" and not begins:
            kept.pop()
        if not kept:
            del self.later[topic]

    def _queue_later(self) -> None:
        for kept in self.later.values():
            self.arrivals += kept
        self.later.clear()
