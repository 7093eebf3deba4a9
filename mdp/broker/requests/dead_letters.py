"""Dead letters: requests that were given up because several workers were lost with them, kept for people (fault B7).

Pure. The list is bounded in number and octets; the oldest make room.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mdp.broker.limits import BrokerOptions

__all__ = ["DeadLetters", "Letter", "Loss"]

# One lost worker: its routing id, why it was lost (the counter's name), when (monotonic seconds).
Loss = tuple[bytes, str, float]


class Letter:
    """A request nobody answered.

    Attributes:
        number: names it in this broker.
        service: whom it was for.
        body: encoded body frames.
        losses: the workers that were lost with it.
        died_at: monotonic seconds.
        user: who asked, "" for a peer without a name, None at a broker without rules.
        retried: a request made of it is open; the letter goes when that is answered, and stays when it ends in any other way.
    """

    __slots__ = ("body", "died_at", "losses", "number", "retried", "service", "user")

    def __init__(self, number: int, service: bytes, body: bytes, losses: list[Loss], died_at: float, user: str | None = None) -> None:
        self.number = number
        self.service = service
        self.body = body
        self.losses = losses
        self.died_at = died_at
        self.user = user
        self.retried = False


class DeadLetters:
    """Letters by number, oldest first.

    Args:
        options: limits.

    Attributes:
        size: octets of their bodies.
        pushed_out: letters that had to make room.
    """

    def __init__(self, options: BrokerOptions) -> None:
        self.size = 0
        self.pushed_out = 0
        self._options = options
        self._letters: OrderedDict[int, Letter] = OrderedDict()

    def __len__(self) -> int:
        return len(self._letters)

    def __iter__(self) -> Iterator[Letter]:
        return iter(self._letters.values())

    def add(self, letter: Letter) -> None:
        """Keep a letter."""
        self._letters[letter.number] = letter
        self.size += len(letter.body)
        while len(self._letters) > self._options.letters_max or self.size > self._options.letters_max_bytes:
            self.size -= len(self._letters.popitem(last=False)[1].body)
            self.pushed_out += 1

    def get(self, number: int) -> Letter | None:
        """Return a letter."""
        return self._letters.get(number)

    def take(self, number: int) -> Letter | None:
        """Remove and return a letter."""
        letter = self._letters.pop(number, None)
        if letter is not None:
            self.size -= len(letter.body)
        return letter
