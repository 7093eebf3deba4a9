"""Options of the data source `titanic`, checked before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from mdp.client.sync import SyncClient
from mdp.spark.rows.curve_files import CurveFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["OPTIONS", "BadOption", "Settings"]

# Options that Spark adds.
_SPARKS_OWN = frozenset({"path", "checkpointlocation"})
# So that the key of a staged chunk, which contains it, fits a store's limit.
_BATCH_CHARACTERS_MAX = 100


class BadOption(ValueError):
    """An option of the data source is missing, unknown or out of range."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"option {self.name} of the titanic source: {self.reason}"


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of the options."""

    brokers: tuple[str, ...]  # endpoints, in order of preference; given separated by commas
    service: str  # to which rows are sent, or whose replies are read; empty for all
    key: str  # column with each row's key
    request: tuple[str, ...]  # columns that become body frames; empty for all
    batch: str
    reply: str  # columns of the decoded reply, as DDL; empty for the unchanged frames
    decode: str  # decoder, see `mdp.spark.rows.reply_columns`
    stage_ttl_s: float  # seconds after which staged rows are dropped without a commit
    chunk_rows: int  # rows staged with one request
    partition_rows: int  # replies one task reads
    batch_rows: int  # maximum replies of one micro-batch, 0 for no limit
    window: int  # requests in flight per task
    wait_s: float  # seconds a read waits for missing replies
    close: bool  # a stream forgets requests once their micro-batch is done
    start: str  # "earliest" or "latest", for a stream without a checkpoint
    timeout_s: float  # seconds for each attempt to reach the store
    attempts: int  # number of these attempts
    curve: CurveFiles | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Settings:
        """Read the options; raises BadOption if one is missing, unknown or out of range."""
        given = {name.lower(): value for name, value in options.items() if name.lower() not in _SPARKS_OWN}
        unknown = sorted(given.keys() - OPTIONS.keys())
        if unknown:
            raise BadOption(unknown[0], f"there is none; there are {', '.join(OPTIONS)}")
        values: dict[str, Any] = {}
        for name, (field, default, parse) in OPTIONS.items():
            text = given.get(name, default)
            if text is None:
                raise BadOption(name, "is needed")
            try:
                values[field] = parse(text)
            except ValueError as error:
                raise BadOption(name, str(error)) from None
        secret, server = values.pop("curve_secret_file"), values.pop("curve_server_file")
        if bool(secret) != bool(server):
            raise BadOption("curve_secret_file", "comes with curve_server_file")
        return cls(**values, curve=CurveFiles(secret, server) if secret else None)

    def client(self) -> SyncClient:
        """Connect from the current process, which reads the key files."""
        extra: dict[str, Any] = {} if self.curve is None else {"socket_options": self.curve.socket_options()}
        return SyncClient(self.brokers, timeout=self.timeout_s, attempts=self.attempts, **extra)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _batch(text: str) -> str:
    if "/" in text or not text.isprintable() or len(text) > _BATCH_CHARACTERS_MAX:
        raise ValueError(f"up to {_BATCH_CHARACTERS_MAX} printable characters without '/'")
    return text


def _number(least: float, most: float, kind: type[int | float] = float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a number") from None
        if not least <= value <= most:
            raise ValueError(f"{text} is not between {least:g} and {most:g}")
        return kind(value)

    return parse


def _one_of(first: str, second: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in (first, second):
            raise ValueError(f"is {first} or {second}")
        return text

    return parse


# Option -> field of `Settings`, default or None, conversion. Spark passes options as text in lower case.
OPTIONS: Final[dict[str, tuple[str, str | None, Callable[[str], Any]]]] = {
    "broker": ("brokers", None, _words),
    "service": ("service", "", str),
    "key": ("key", "", str),
    "request": ("request", "", _words),
    "batch": ("batch", "", _batch),
    "reply": ("reply", "", str),
    "decode": ("decode", "", str),
    "stage_ttl": ("stage_ttl_s", "86400", _number(0.001, 7 * 86_400)),
    "chunk_rows": ("chunk_rows", "500", _number(1, 10_000, int)),
    "partition_rows": ("partition_rows", "2000", _number(1, 16_384, int)),
    "batch_rows": ("batch_rows", "0", _number(0, 2**31, int)),
    "window": ("window", "256", _number(1, 65_535, int)),
    "wait": ("wait_s", "0", _number(0, 86_400)),
    "close": ("close", "false", lambda text: _one_of("true", "false")(text.lower()) == "true"),
    "start": ("start", "earliest", _one_of("earliest", "latest")),
    "timeout": ("timeout_s", "30", _number(0.001, 86_400)),
    "attempts": ("attempts", "5", _number(1, 1000, int)),
    "curve_secret_file": ("curve_secret_file", "", str),
    "curve_server_file": ("curve_server_file", "", str),
}
