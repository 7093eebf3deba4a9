"""Measured pace of a worker: its time for one request.

While requests wait, the broker measures the workers every few milliseconds (`mdp.broker.workers.maintenance`), without any messages. By
Little's law the time for one request is the time that places of a worker were taken, divided by the requests it answered meanwhile. A place
is one request at work: a worker has as many places as its concurrency.

    taken   ████████████████  2 places × 0.5 s           a round: as many answers as it has places, at least four
    answers     a   a   a  a  4               → 250 ms   the last two rounds: from `least_us` to `most_us`

Pure, in whole microseconds.
"""

from __future__ import annotations

from typing import Final

# The measurement of a worker without work is forgotten after this time, so that a worker that was slow once gets work again.
TRUST_US: Final = 10_000_000
# Minimum answers of a round.
_ROUND_MIN: Final = 4


class Pace:
    """Measured time of one worker for a request.

    Attributes:
        failures: requests it has answered with ERROR; not counted as answers, or a worker that fails at once would be the quickest.
        least_us: the shorter of the last two rounds; during the first round, the time so far for its answers and current requests.
        most_us: the longest of the last two rounds and the time for its current requests.
    """

    __slots__ = ("_answered", "_at", "_busy", "_done", "_last", "_rounds", "_running", "failures", "known", "least_us", "most_us")

    def __init__(self) -> None:
        self.failures = 0
        self.known = False
        self.least_us = self.most_us = 0
        self._last = 0
        self._rounds = (0, 0)
        self._answered = self._at = self._busy = self._done = self._running = 0

    def note(self, now_us: int, done: int, running: int, places: int, *, anew: bool = False) -> None:
        """Record what the worker has answered and works on now.

        Args:
            now_us: monotonic.
            done: requests it has answered since it registered, with FINAL or ERROR.
            running: requests it works on.
            places: requests that it works on at once.
            anew: whether it was not measured for some time; what it did meanwhile does not count.
        """
        done -= self.failures
        if now_us - self._last > TRUST_US:
            self.known = False
            self._busy = self._answered = 0
        if not anew and self._at:  # not at the first measurement: it may have registered just now
            # What began or ended between two measurements did so halfway, on average.
            self._busy += (now_us - self._at) * (self._running + running) // 2
            self._answered += done - self._done
        self._at, self._done, self._running = now_us, done, running
        if running:
            self._last = now_us
        if self._answered >= max(places, _ROUND_MIN):
            mean = self._busy // self._answered
            self._rounds = (self._rounds[1] if self.known else mean, mean)
            self.known, self._last = True, now_us
            self._busy = self._answered = 0
        at_us = self._busy // max(1, self._answered + running)
        self.least_us, self.most_us = (min(self._rounds), max(*self._rounds, at_us)) if self.known else (at_us, at_us)
