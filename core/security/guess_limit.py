"""Limit of wrong passwords per address; the addresses of one IPv6 network are one. Pure."""

from __future__ import annotations

from typing import Final

from core.address import source_of

GUESSES_MAX: Final = 20  # in WINDOW_S: a person mistypes three times, a program with an old password reconnects for a while
WINDOW_S: Final = 60.0  # 20 a minute are 10 million in a year: too few for any password that is not in a dictionary
ADDRESSES_MAX: Final = 4096  # some 400 KiB


class GuessLimit:
    """Counts wrong passwords by address."""

    __slots__ = ("_guesses_max", "_window_s", "_wrong")

    def __init__(self, guesses_max: int = GUESSES_MAX, window_s: float = WINDOW_S) -> None:
        self._guesses_max = guesses_max  # wrong passwords an address may try in a window
        self._window_s = window_s  # seconds; a window begins with its first wrong password
        self._wrong: dict[str, tuple[float, int]] = {}  # address -> end of its window, wrong passwords in it; oldest window first

    def may_try(self, address: str, now: float) -> bool:
        until, wrong = self._wrong.get(source_of(address), (now, 0))
        return now >= until or wrong < self._guesses_max

    def wrong(self, address: str, now: float) -> None:
        address = source_of(address)
        until, wrong = self._wrong.get(address, (now, 0))
        if now >= until:
            until, wrong = now + self._window_s, 0
            while self._wrong and (len(self._wrong) >= ADDRESSES_MAX or next(iter(self._wrong.values()))[0] <= now):
                del self._wrong[next(iter(self._wrong))]
        self._wrong[address] = until, wrong + 1
