"""Options of the data source `titanic`, checked before anything runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mdp.client.sync import SyncClient
from mdp.spark.rows.curve_files import CurveFiles

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["DEFAULTS", "BadOption", "Settings"]

# Option -> default; None without one. Spark passes options as text in lower case.
DEFAULTS: dict[str, str | None] = {
    "broker": None,
    "service": "",
    "key": "",
    "request": "",
    "batch": "",
    "reply": "",
    "decode": "",
    "stage_ttl": "86400",
    "chunk_rows": "500",
    "partition_rows": "2000",
    "batch_rows": "0",
    "window": "256",
    "wait": "0",
    "close": "false",
    "start": "earliest",
    "timeout": "30",
    "attempts": "5",
    "curve_secret_file": "",
    "curve_server_file": "",
}
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
        unknown = sorted(set(given) - set(DEFAULTS))
        if unknown:
            raise BadOption(unknown[0], f"there is none; there are {', '.join(DEFAULTS)}")
        texts = {name: given.get(name, default) for name, default in DEFAULTS.items()}
        chosen: dict[str, str] = {}
        for name, value in texts.items():
            if value is None:
                raise BadOption(name, "is needed")
            chosen[name] = value
        batch = chosen["batch"]
        if "/" in batch or not batch.isprintable() or len(batch) > _BATCH_CHARACTERS_MAX:
            raise BadOption("batch", f"up to {_BATCH_CHARACTERS_MAX} printable characters without '/'")
        if chosen["start"] not in ("earliest", "latest"):
            raise BadOption("start", "is earliest or latest")
        secret, server = chosen["curve_secret_file"], chosen["curve_server_file"]
        if bool(secret) != bool(server):
            raise BadOption("curve_secret_file", "comes with curve_server_file")
        return cls(
            brokers=_words(chosen["broker"]),
            service=chosen["service"],
            key=chosen["key"],
            request=_words(chosen["request"]),
            batch=batch,
            reply=chosen["reply"],
            decode=chosen["decode"],
            stage_ttl_s=_number("stage_ttl", chosen, 0.001, 7 * 86_400),
            chunk_rows=int(_number("chunk_rows", chosen, 1, 10_000)),
            partition_rows=int(_number("partition_rows", chosen, 1, 16_384)),
            batch_rows=int(_number("batch_rows", chosen, 0, 2**31)),
            window=int(_number("window", chosen, 1, 65_535)),
            wait_s=_number("wait", chosen, 0, 86_400),
            close=_flag("close", chosen),
            start=chosen["start"],
            timeout_s=_number("timeout", chosen, 0.001, 86_400),
            attempts=int(_number("attempts", chosen, 1, 1000)),
            curve=CurveFiles(secret, server) if secret else None,
        )

    def client(self) -> SyncClient:
        """Connect from the current process, which reads the key files."""
        extra: dict[str, Any] = {} if self.curve is None else {"socket_options": self.curve.socket_options()}
        return SyncClient(self.brokers, timeout=self.timeout_s, attempts=self.attempts, **extra)


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _number(name: str, options: Mapping[str, str], least: float, most: float) -> float:
    try:
        value = float(options[name])
    except ValueError:
        raise BadOption(name, f"{options[name]!r} is not a number") from None
    if not least <= value <= most:
        raise BadOption(name, f"{options[name]} is not between {least:g} and {most:g}")
    return value


def _flag(name: str, options: Mapping[str, str]) -> bool:
    value = options[name].lower()
    if value not in ("true", "false"):
        raise BadOption(name, "is true or false")
    return value == "true"
