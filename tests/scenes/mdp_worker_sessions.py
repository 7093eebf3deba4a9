"""Sessions of workers with a broker, and the messages of both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from core.zmtp.frames import Encoded
from mdp.session.broker_search import BrokerSearch, SearchTimes
from mdp.wire.commands import V01, V02, V03
from mdp.worker.session import WorkerSession
from mdp.worker.session_options import SessionOptions
from tests.scenes.mdp_messages import made, read, worker_request

if TYPE_CHECKING:
    from core.zmtp.scan import Batch
    from mdp.request import Request
    from mdp.wire.commands import Dialect

DIALECTS: list[Dialect] = [V01, V02, V03]
BROKER = "tcp://broker:5555"


def session(dialect: Dialect = V03, **options: Any) -> WorkerSession:
    search = BrokerSearch([BROKER], dialect, SearchTimes(), lambda: 1.0)
    return WorkerSession("echo", search, SessionOptions(**{"credit": 8, **options}))


def serving(dialect: Dialect = V03, now: float = 0.0, **options: Any) -> WorkerSession:
    machine = session(dialect, **options)
    machine.search.start(now)
    machine.joined(now)
    machine.search.take_actions()
    machine.take_outgoing(now)
    return machine


receive = WorkerSession.receive  # before tests replace it


def as_frames(machine: WorkerSession, batch: Batch, now: float) -> list[Request]:
    """Hand a batch over as frames, as large messages come."""
    return receive(machine, made(batch), now)


def sent(machine: WorkerSession, now: float = 0.0) -> list[list[bytes]]:
    messages = []
    for message in machine.take_outgoing(now):
        frames: list[bytes] = []
        for item in [Encoded(message)] if isinstance(message, bytes) else message:
            frames += item.frames() if isinstance(item, Encoded) else [item]
        messages.append(frames)
    return messages


def token(number: int) -> bytes:
    return number.to_bytes(8, "big")


def work(number: int, *body: bytes, dialect: Dialect = V03, options: bytes = b"") -> list[bytes]:
    return worker_request(dialect, token(number), body or (b"x",), options=options)


def give(machine: WorkerSession, *numbers: int, now: float = 0.0) -> list[Request]:
    return machine.receive(read([work(number, dialect=machine.search.dialect) for number in numbers]), now)
