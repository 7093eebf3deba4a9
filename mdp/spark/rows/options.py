"""Options of `dispatch` that bound and order its requests, with their defaults and checks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypedDict

from mdp.batch.tables import ROWS_MAX
from mdp.spark.dispatch_choices import BROKERS, KEY_SCOPES, WINDOW_MAX
from mdp.spark.rows.exchange import WINDOW_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping

# Requests in flight of a partition, if the job does not say.
ROWS_IN_FLIGHT = 256
BATCHES_IN_FLIGHT = 16
# Types of options by their annotations; numbers of numpy are numbers too.
_KINDS = {"int": (Integral, "a whole number"), "float": (Real, "a number"), "bool": (bool, "True or False"), "str": (str, "text")}

_LEAST = {"window_bytes": 1, "attempts": 1, "rate_tasks": 1, "batch_bytes": 1, "max_failures": 0, "batch_ms": 0}
_ABOVE_0 = {"timeout": "seconds", "deadline": "seconds", "rate": "rows a second"}
_CHOICES = {"key_scope": KEY_SCOPES, "brokers": BROKERS}


class DispatchOptions(TypedDict, total=False):
    """Further keyword arguments of `dispatch`, for type checkers; `Bounds` describes them."""

    window: int
    window_bytes: int
    ordered: bool
    timeout: float
    attempts: int
    wait: bool
    batch: int
    batch_bytes: int
    batch_ms: float | None
    max_failures: float | None
    deadline: float | None
    key_scope: str
    brokers: str
    rate: float | None
    rate_tasks: int | None
    detach: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds and order of a job's requests.

    Attributes:
        window: maximum requests in flight per partition, None for 256, or 16 with `batch`.
        window_bytes: maximum bytes of a partition's requests in flight and of replies that are not yielded; one request is always in
            flight, whatever its size.
        ordered: rows keep the order of their partition; False: they come as their chunks are finished, so that a slow row holds back less.
        timeout: seconds to wait for each attempt.
        wait: wait for a service that has no worker, as long as attempts x timeout allow, instead of failing with NO_SERVICE.
        batch: rows of a request, sent as an Arrow table to a service marked `batch="arrow"`; 0 for a request a row. A service that does not
            take tables is asked row by row, which is logged.
        batch_bytes: maximum bytes of such a request; it then has fewer rows, one at least.
        batch_ms: milliseconds after which rows are sent though they are fewer than `batch`, as a stream without much traffic needs; None:
            batches are the same when a task runs again, and are answered from the replies that broker or store keep.
        max_failures: rows of a partition without reply after which the job fails; below 1 the part of its rows, judged from the
            hundredth row on; None for any number.
        deadline: seconds from the call of `dispatch`, after which rows are not sent or waited for any longer: DEADLINE_EXCEEDED.
        key_scope: "job": the same key in another job is another request; "service": it is the same request in all jobs, such as the
            number of an order; a corrected service then still gives its old answers.
        brokers: of several brokers, "failover": the first reachable one; "hash": partitions are spread over them by their numbers, and the
            next one is used if a broker is not reachable. A task that runs again uses the same broker as before.
        rate: rows that the job asks about in a second, at most: each task may ask about its part, `rate / rate_tasks`.
        rate_tasks: tasks that run at once; None for the cores of the session (its default parallelism), which Spark Connect does not tell.
        detach: a task that ends early, because the job is cancelled or has enough rows, leaves the service the rows that it has taken: they
            are asked about while the Python process of Spark lives; False: they are withdrawn.

    Raises:
        ValueError: one is out of range.
        TypeError: one is of another type.
    """

    window: int | None = None
    window_bytes: int = WINDOW_BYTES
    ordered: bool = True
    timeout: float = 30.0
    attempts: int = 5
    wait: bool = False
    batch: int = 0
    batch_bytes: int = 4 * 1024 * 1024
    batch_ms: float | None = None
    max_failures: float | None = None
    deadline: float | None = None
    key_scope: str = "job"
    brokers: str = "failover"
    rate: float | None = None
    rate_tasks: int | None = None
    detach: bool = False

    @property
    def requests(self) -> int:
        return self.window or (BATCHES_IN_FLIGHT if self.batch else ROWS_IN_FLIGHT)

    def __post_init__(self) -> None:
        for one in fields(self):
            _check_kind(one.name, str(one.type), getattr(self, one.name))
        if not 1 <= self.requests <= WINDOW_MAX or self.window == 0:
            raise ValueError(f"window is 1 to {WINDOW_MAX}, not {self.window}")
        if not 0 <= self.batch <= ROWS_MAX:
            raise ValueError(f"batch is 0 to {ROWS_MAX} rows, not {self.batch}")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and not value >= least:
                raise ValueError(f"{name} is {least} or more, not {value}")
        for name, unit in _ABOVE_0.items():
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} is a number of {unit} above 0, not {value}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is one of {', '.join(choices)}, not {getattr(self, name)!r}")


def bounds_of(options: Mapping[str, Any]) -> Bounds:
    """Return the bounds that options give; raises ValueError, TypeError."""
    unknown = sorted(options.keys() - {one.name for one in fields(Bounds)})
    if unknown:
        raise TypeError(f"dispatch has no argument {', '.join(unknown)}")
    return Bounds(**options)


def _check_kind(name: str, annotation: str, value: object) -> None:
    """Raise TypeError if a value is not what its annotation says, such as `int | None`."""
    words = annotation.split(" | ")
    kind, called = _KINDS[words[0]]
    if value is None and "None" in words:
        return
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{name} is {called}, not {value!r:.100}")
