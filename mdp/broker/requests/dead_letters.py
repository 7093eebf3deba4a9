"""Dead letters: requests given up after several workers were lost with them, kept for operators (fault B7).

Pure. The list is bounded in number and octets; the oldest are dropped first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdp.broker.limits import BrokerOptions

# One lost worker: its routing id, the reason (name of a counter), the time (monotonic seconds).
Loss = tuple[bytes, str, float]


class DeadLetter:
    """A request that is not tried again, kept for an operator."""

    __slots__ = ("body", "died_at", "losses", "number", "retried", "service", "user")

    def __init__(self, number: int, service: bytes, body: bytes, losses: list[Loss], died_at: float, user: str | None = None) -> None:
        self.number = number
        self.service = service
        self.body = body
        self.losses = losses
        self.died_at = died_at  # monotonic seconds
        self.user = user  # name of the user, "" for a peer without a name, None at a broker without rules
        # a request was made of it and is open: an answer removes the dead letter, any other end keeps it
        self.retried = False


class DeadLetters:
    """Dead letters by number, oldest first."""

    def __init__(self, options: BrokerOptions) -> None:
        self.size = 0
        self.pushed_out = 0
        self._options = options
        self._dead_letters: OrderedDict[int, DeadLetter] = OrderedDict()

    def __len__(self) -> int:
        return len(self._dead_letters)

    def __iter__(self) -> Iterator[DeadLetter]:
        return iter(self._dead_letters.values())

    def add(self, dead_letter: DeadLetter) -> None:
        """Add a dead letter; drop the oldest beyond the limits, or the new one if it alone is larger."""
        if len(dead_letter.body) > self._options.letters_max_bytes:
            self.pushed_out += 1
            return
        self._dead_letters[dead_letter.number] = dead_letter
        self.size += len(dead_letter.body)
        while len(self._dead_letters) > self._options.letters_max or self.size > self._options.letters_max_bytes:
            self.size -= len(self._dead_letters.popitem(last=False)[1].body)
            self.pushed_out += 1

    def get(self, number: int) -> DeadLetter | None:
        return self._dead_letters.get(number)

    def take(self, number: int) -> DeadLetter | None:
        dead_letter = self._dead_letters.pop(number, None)
        if dead_letter is not None:
            self.size -= len(dead_letter.body)
        return dead_letter
