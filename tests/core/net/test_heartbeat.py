"""core.net.heartbeat: when PINGs leave, and which silence ends a connection (ZMTP-50 to ZMTP-60)."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from core.net.heartbeat import SIGN_OF_LIFE_S, Heartbeat

if TYPE_CHECKING:
    from collections.abc import Callable


class _NoLoop:
    """The part of a loop that a timer needs."""

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: object) -> None: ...


class Clock:
    """A heartbeat under a clock that a test moves; keeps what it does, with the time."""

    def __init__(self, interval_s: float = 0.0, timeout_s: float = 0.0) -> None:
        self.now = 0.0
        self.did: list[tuple[float, str]] = []
        self.life_s: float | None = None
        self.in_transit = 0
        self._numbers = count()
        self._timers: list[tuple[float, int, asyncio.TimerHandle, Callable[[], object]]] = []
        loop: Any = _NoLoop()

        def later(delay_s: float, call: Callable[[], object]) -> asyncio.TimerHandle:
            handle = asyncio.TimerHandle(self.now + delay_s, call, (), loop)
            heapq.heappush(self._timers, (self.now + delay_s, next(self._numbers), handle, call))
            return handle

        def alive() -> float | None:
            self.note("alive")
            return self.life_s

        self.heartbeat = Heartbeat(later, interval_s, timeout_s, lambda: self.note("ping"), self.note, lambda: self.in_transit, alive)

    def note(self, what: str) -> None:
        self.did.append((self.now, what))

    def until(self, when: float) -> list[tuple[float, str]]:
        """Move the clock; return what was done since the last call."""
        while self._timers and self._timers[0][0] <= when:
            self.now, _, handle, call = heapq.heappop(self._timers)
            if not handle.cancelled():
                call()
        self.now = when
        did, self.did = self.did, []
        return did

    def pending(self) -> int:
        return sum(not handle.cancelled() for _, _, handle, _ in self._timers)


SILENT = "silent for 3 s after a PING"
TTL = "silent for longer than the TTL of its last PING"


def test_pings_leave_at_the_interval_the_first_after_one() -> None:
    clock = Clock(2.0)
    clock.heartbeat.start()
    assert clock.until(7.0) == [(2.0, "ping"), (4.0, "ping"), (6.0, "ping")]
    clock.heartbeat.stop()
    assert (clock.until(100.0), clock.pending()) == ([], 0)


def test_without_an_interval_there_are_none() -> None:
    clock = Clock()
    clock.heartbeat.start()
    assert (clock.until(100.0), clock.pending()) == ([], 0)


def test_silence_after_a_ping_ends_the_connection() -> None:
    clock = Clock(10.0, 3.0)
    clock.heartbeat.start()
    clock.heartbeat.heard = True  # before the PING
    assert clock.until(13.0) == [(10.0, "ping"), (13.0, SILENT)]


def test_octets_of_a_large_message_before_a_ping_keep_it_while_they_move() -> None:
    """ZMTP-56, HB-02: the PING waits behind them."""
    clock = Clock(100.0, 3.0)
    clock.heartbeat.start()
    clock.until(100.0)
    for _ in range(20):
        clock.in_transit += 1
        assert clock.until(clock.now + 3.0) == []
    assert clock.until(clock.now + 3.0) == [(163.0, SILENT)]


def test_hb_02_what_moved_before_the_peer_was_heard_does_not_keep_it_later() -> None:
    clock = Clock(100.0, 3.0)
    clock.heartbeat.start()
    clock.until(100.0)
    clock.in_transit = 500
    clock.until(105.0)
    clock.heartbeat.heard = True
    clock.in_transit = 0
    assert clock.until(203.0) == [(200.0, "ping"), (203.0, SILENT)]


def test_what_was_heard_after_a_ping_keeps_it_and_the_next_ping_begins_anew() -> None:
    clock = Clock(10.0, 3.0)
    clock.heartbeat.start()
    clock.until(11.0)
    clock.heartbeat.heard = True
    assert clock.until(22.9) == [(20.0, "ping")]
    assert clock.until(23.0) == [(23.0, SILENT)]


def test_a_timeout_longer_than_the_interval_begins_with_the_first_ping_that_finds_none() -> None:
    clock = Clock(2.0, 3.0)
    clock.heartbeat.start()
    assert clock.until(4.5) == [(2.0, "ping"), (4.0, "ping")]
    clock.heartbeat.heard = True
    assert clock.until(8.9) == [(6.0, "ping"), (8.0, "ping")]
    assert clock.until(9.0) == [(9.0, SILENT)]


def test_without_a_timeout_silence_is_borne() -> None:
    clock = Clock(10.0)
    clock.heartbeat.start()
    assert clock.until(25.0) == [(10.0, "ping"), (20.0, "ping")]


def test_silence_for_the_ttl_of_a_ping_ends_the_connection_and_each_ping_begins_it_anew() -> None:
    """ZMTP-53."""
    clock = Clock()
    clock.heartbeat.heard = True
    clock.heartbeat.ttl(5.0)
    clock.until(4.0)
    clock.heartbeat.heard = True
    clock.heartbeat.ttl(5.0)
    assert clock.until(8.9) == []
    assert clock.until(9.0) == [(9.0, TTL)]


def test_what_was_heard_within_the_ttl_ends_it() -> None:
    clock = Clock()
    clock.heartbeat.ttl(5.0)
    clock.until(1.0)
    clock.heartbeat.heard = True
    assert (clock.until(100.0), clock.pending()) == ([], 0)


def test_a_ttl_below_a_second_is_one() -> None:
    clock = Clock()
    clock.heartbeat.ttl(0.5)
    assert clock.until(0.5) == [(0.5, TTL)]


def test_a_ttl_of_zero_ends_the_one_before() -> None:
    clock = Clock()
    clock.heartbeat.ttl(5.0)
    clock.heartbeat.ttl(0.0)
    assert (clock.until(100.0), clock.pending()) == ([], 0)


def test_neither_timer_hides_from_the_other_what_was_heard() -> None:
    clock = Clock(10.0, 3.0)
    clock.heartbeat.start()
    clock.heartbeat.ttl(12.0)
    clock.until(9.0)
    clock.heartbeat.heard = True
    assert clock.until(10.5) == [(10.0, "ping")]  # the timeout has begun
    clock.heartbeat.heard = True
    assert clock.until(12.5) == []  # the TTL was over
    assert clock.until(19.0) == []  # and the timeout


@pytest.mark.parametrize("first", ["ttl", "ping"])
def test_a_peer_that_sends_pings_is_heard_by_both(first: str) -> None:
    clock = Clock(1.0, 1.5)
    clock.heartbeat.start()
    if first == "ping":
        clock.until(1.0)
    for number in range(8):
        clock.heartbeat.heard = True
        clock.heartbeat.ttl(1.2)
        assert [what for _, what in clock.until(clock.now + 1.0)] == ["ping"], number


def test_a_connection_that_is_not_read_shows_life_and_is_not_taken_for_dead() -> None:
    """ZMTP-57, ZMTP-59."""
    clock = Clock(10.0, 3.0)
    clock.heartbeat.start()
    clock.heartbeat.ttl(2.0)
    clock.heartbeat.suspend()
    clock.life_s = 4.0
    assert clock.until(15.0) == [*((SIGN_OF_LIFE_S + at, "alive") for at in (0, 4, 8)), (10.0, "ping"), (SIGN_OF_LIFE_S + 12, "alive")]
    clock.heartbeat.resume()
    clock.life_s = None
    assert clock.until(17.0) == [(SIGN_OF_LIFE_S + 16, "alive")]
    # The TTL of 14.0 to 16.0 has heard the resumption, and there is no further one; the next timeout hears nothing.
    assert clock.until(23.0) == [(20.0, "ping"), (23.0, SILENT)]
    assert clock.pending() == 1


def test_the_ttl_begins_anew_while_nothing_is_read() -> None:
    clock = Clock()
    clock.heartbeat.ttl(2.0)
    clock.heartbeat.suspend()
    clock.until(5.0)
    assert clock.pending() == 1
    clock.until(6.0)
    clock.heartbeat.resume()
    assert clock.until(7.9) == []
    clock.heartbeat.heard = False  # nothing was read after all
    assert clock.until(8.0) == [(8.0, TTL)]


def test_a_sign_of_life_that_is_due_earlier_is_left() -> None:
    clock = Clock()
    clock.heartbeat.show_life(1.0)
    clock.heartbeat.show_life(0.5)
    clock.heartbeat.suspend()
    assert clock.until(10.0) == [(1.0, "alive")]
    clock.heartbeat.show_life(1.0)
    clock.heartbeat.stop()
    assert clock.until(20.0) == []


def test_a_timeout_below_a_second_is_one() -> None:
    clock = Clock(10.0, 0.5)
    clock.heartbeat.start()
    assert clock.until(11.0) == [(10.0, "ping"), (10.5, "silent for 0.5 s after a PING")]
