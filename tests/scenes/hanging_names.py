"""Host names whose name servers do not answer."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from core.runtime import runtime
from tests.scenes.waiting import PATIENCE_S

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Iterable, Iterator


class Hanging(runtime.Runtime):
    """A resolver that does not answer for any name but `localhost`."""

    def __init__(self, on_question: Callable[[str], object] = str) -> None:
        super().__init__()
        self._on_question = on_question
        self.asked: list[str] = []
        self.may_answer = threading.Event()

    def addresses(self, host: str, port: int, family: socket.AddressFamily) -> Iterable[tuple[Any, ...]]:
        self.asked.append(host)
        self._on_question(host)
        if host != "localhost":
            self.may_answer.wait(10 * PATIENCE_S)
            host = "127.0.0.1"
        return super().addresses(host, port, family)


@contextmanager
def hanging(on_question: Callable[[str], object] = str) -> Iterator[Hanging]:
    names = Hanging(on_question)
    with runtime.scope(names):
        try:
            yield names
        finally:
            names.may_answer.set()
