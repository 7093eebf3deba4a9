"""Questions of functions: in a task, the arguments of each row become a request, as with `dispatch`."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from core.machine.bounded_msgpack import unpack
from mdp.spark.flow.plan import Plan
from mdp.spark.flow.session_options import read_bounds, read_broker, read_names, read_via
from mdp.spark.rows.job import OUTCOME, destination, request_route
from mdp.spark.rows.partition import answer_partition
from mdp.spark.rows.reply_columns import decode_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from mdp.spark.rows.curve_files import CurveFiles
    from mdp.spark.rows.options import Bounds, DispatchOptions
    from mdp.spark.rows.reply_columns import Decode

# The local property of tasks with the number of the query; with it, the same rows in another query are other requests.
_EXECUTION = "spark.sql.execution.id"


def reply_text(frames: list[bytes]) -> Sequence[Any]:
    """Decode a reply as text: UTF-8 as it is, msgpack as JSON, several frames as lines; raises ValueError."""
    if len(frames) == 1:
        try:
            return (frames[0].decode(),)
        except UnicodeDecodeError:
            # A map or an array of msgpack is never UTF-8.
            return (json.dumps(unpack(frames[0], extensions=True), default=_plain, ensure_ascii=False),)
    return decode_text(frames)


def _plain(value: object) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


@dataclass(frozen=True, slots=True)
class Question:
    """Arguments of a function that calls a service, for the tasks."""

    service: str | None  # name of the service, None if the first argument of each row names it
    names: tuple[str, ...] | None  # of the columns in a table of a batch service; None for `c0`, `c1`, …
    reply: tuple[tuple[str, pa.DataType], ...]
    decode: Decode
    on_error: str
    job: str
    broker: tuple[str, ...] | None  # the brokers, None for those of `spark.mdp.broker`
    options: DispatchOptions  # those of `dispatch` that are given; others are read from the session's configuration in the task
    curve: CurveFiles | None = None
    client_options: tuple[tuple[str, Any], ...] = ()

    def plan(self, service: str, columns: int) -> Plan:
        """Return the job of this task; Spark gives it the session's configuration. Raises ValueError, TypeError."""
        context = TaskContext.get()

        def setting(name: str) -> str | None:
            return None if context is None else context.getLocalProperty(name)

        # The rows of a result have to be as many, and in the order, as those of the arguments.
        bounds = replace(read_bounds(setting, self.options), ordered=True)
        names = tuple(f"c{number}" for number in range(columns))
        return Plan(
            to=destination(
                self.broker or read_broker(setting), service, bounds, dict(self.client_options), self.curve, read_names(setting)
            ),
            service=service,
            request=names,
            reply=self.reply,
            output_names=tuple(name for name, _ in self.reply) + tuple(OUTCOME.names),
            decode=self.decode,
            key=None,
            job=f"{self.job}/{setting(_EXECUTION)}",
            bounds=bounds,
            ends_at=None if bounds.deadline is None else time.time() + bounds.deadline,
            on_error=self.on_error,
            counts=None,
            request_names=self.names or names,
            width=0,
            rate=_rate(bounds),
            route=request_route(read_via(setting), bounds, parts=False),
        )

    def answers(self, batches: Iterator[Sequence[pa.Array]]) -> Iterator[pa.RecordBatch]:
        """Yield the columns of the reply and of the outcome; as many rows, in the same order. Raises DispatchFailed, ValueError."""
        first = next(batches, None)
        while first is not None and not len(first[0]):
            first = next(batches, None)
        if first is None:
            return
        service = self.service if self.service is not None else _one_service(first[0])
        arguments = first if self.service is not None else first[1:]
        if not arguments:
            raise ValueError("a request needs at least one column")

        def requests() -> Iterator[pa.RecordBatch]:
            yield _batch(arguments)
            for columns in batches:
                if self.service is None and len(columns[0]) and _one_service(columns[0]) != service:
                    raise ValueError(f"a query asks one service, not {service} and {_one_service(columns[0])}")
                yield _batch(columns if self.service is not None else columns[1:])

        yield from answer_partition(self.plan(service, len(arguments)), requests())


def _rate(bounds: Bounds) -> float | None:
    """Return the rows a second of a task; raises ValueError if it cannot be known here."""
    if bounds.rate is None:
        return None
    if bounds.rate_tasks is None:
        raise ValueError("rate of a function needs rate_tasks, the number of tasks that run at once")
    return bounds.rate / bounds.rate_tasks


def _batch(columns: Sequence[pa.Array]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(list(columns), names=[f"c{number}" for number in range(len(columns))])


def _one_service(column: pa.Array) -> str:
    names = column.unique().to_pylist()
    if len(names) != 1 or not isinstance(names[0], str):
        raise ValueError(f"a query asks one service, by its name as text, not {', '.join(map(repr, names[:5]))}")
    return names[0]
