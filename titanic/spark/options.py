"""Options of the data source `titanic`, checked before anything runs."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from core.address import NameConnect, parse_connect
from core.errors import InvalidEndpoint
from mdp.batch.tables import ROWS_MAX
from mdp.client.sync import SyncClient
from mdp.spark.dispatch_choices import SPARKS_OWN
from mdp.spark.rows.curve_files import CurveFiles
from mdp.spark.rows.reply_columns import DECODERS
from mdp.wire.commands import is_service_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Decoder of requests that are tables.
TABLE: Final = "table"
# So that the key of a staged chunk, which contains it, fits a store's limit.
_BATCH_BYTES_MAX = 100


class BadOption(ValueError):
    """An option of the data source is missing, unknown or out of range."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.name = name
        self.reason = reason

    def __str__(self) -> str:
        return f"option {self.name} of the titanic source: {self.reason}"


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _batch(text: str) -> str:
    if "/" in text or not text.isprintable() or len(text.encode()) > _BATCH_BYTES_MAX:
        raise ValueError(f"up to {_BATCH_BYTES_MAX} bytes of printable text without '/'")
    return text


def _brokers(text: str) -> tuple[str, ...]:
    brokers = _words(text)
    if not brokers:
        raise ValueError("is needed")
    for endpoint in brokers:
        try:
            is_name = isinstance(parse_connect(endpoint), NameConnect)
        except InvalidEndpoint as error:
            raise ValueError(str(error)) from None
        if is_name:
            raise ValueError(f"{endpoint} is a name, an endpoint such as tcp://broker:5555 is needed")
    return brokers


def _service(text: str) -> str:
    if text and not is_service_name(text.encode()):
        raise ValueError(f"{text[:300]!r} is not 1 to 255 bytes of printable text")
    return text


def _decoder(text: str) -> str:
    if text and text not in (*DECODERS, TABLE):
        raise ValueError(f"is one of {', '.join((*DECODERS, TABLE))}, not {text!r}")
    return text


def _number(least: float, most: float, kind: type[int | float] = float) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a {'whole ' if kind is int else ''}number") from None
        if not least <= value <= most:
            raise ValueError(f"{text} is not between {least:g} and {most:g}")
        return value

    return parse


def _one_of(first: str, second: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in (first, second):
            raise ValueError(f"is {first} or {second}")
        return text

    return parse


def _option(name: str, default: str | None, parse: Callable[[str], Any]) -> Any:
    """Return the field of an option: its name, its default as text (None: it is needed), and its conversion."""
    return field(metadata={"name": name, "default": default, "parse": parse})


@dataclass(frozen=True, slots=True)
class Settings:
    """Values of the options."""

    brokers: tuple[str, ...] = _option("broker", None, _brokers)  # endpoints, in order of preference; given separated by commas
    service: str = _option("service", "", _service)  # to which rows are sent, or whose replies are read; empty for all
    key: str = _option("key", "", str)  # column with each row's key
    request: tuple[str, ...] = _option("request", "", _words)  # columns that become body frames; empty for all
    batch: str = _option("batch", "", _batch)
    reply: str = _option("reply", "", str)  # columns of the decoded reply, as DDL; empty for the unchanged frames
    decode: str = _option("decode", "", _decoder)  # decoder, see `mdp.spark.rows.reply_columns`
    stage_ttl_s: float = _option("stage_ttl", "86400", _number(0.001, 7 * 86_400))  # then staged rows without a commit are dropped
    chunk_rows: int = _option("chunk_rows", "500", _number(1, 10_000, int))  # rows staged with one request
    table_rows: int = _option("table_rows", "0", _number(0, ROWS_MAX, int))  # rows of a request, sent as an Arrow table; 0: a request a row
    partition_rows: int = _option("partition_rows", "2000", _number(1, 16_384, int))  # replies one task reads
    batch_rows: int = _option("batch_rows", "0", _number(0, 2**31, int))  # maximum replies of one micro-batch, 0 for no limit
    window: int = _option("window", "256", _number(1, 65_535, int))  # requests in flight per task
    wait_s: float = _option("wait", "0", _number(0, 86_400))  # seconds a read waits for missing replies
    # A stream forgets requests once their micro-batch is done.
    close: bool = _option("close", "false", lambda text: _one_of("true", "false")(text.lower()) == "true")
    start: str = _option("start", "earliest", _one_of("earliest", "latest"))  # for a stream without a checkpoint
    timeout_s: float = _option("timeout", "30", _number(0.001, 86_400))  # seconds for each attempt to reach the store
    attempts: int = _option("attempts", "5", _number(1, 1000, int))  # number of these attempts
    curve_secret_file: str = _option("curve_secret_file", "", str)
    curve_server_file: str = _option("curve_server_file", "", str)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Settings:
        """Read the options; raises BadOption if one is missing, unknown or out of range."""
        given = {name.lower(): value for name, value in options.items() if name.lower() not in SPARKS_OWN}
        known = [one.metadata["name"] for one in fields(cls)]
        unknown = sorted(given.keys() - set(known))
        if unknown:
            raise BadOption(unknown[0], f"there is none; there are {', '.join(known)}")
        values: dict[str, Any] = {}
        for name, one in zip(known, fields(cls), strict=True):
            text = given.get(name, one.metadata["default"])
            if text is None:
                raise BadOption(name, "is needed")
            try:
                values[one.name] = one.metadata["parse"](text)
            except ValueError as error:
                raise BadOption(name, str(error)) from None
        if bool(values["curve_secret_file"]) != bool(values["curve_server_file"]):
            raise BadOption("curve_secret_file", "comes with curve_server_file")
        if values["decode"] == TABLE and not values["reply"]:
            raise BadOption("reply", "is needed with decode=table: the columns of the replies")
        return cls(**values)

    def client(self) -> SyncClient:
        """Connect from the current process, which reads the key files."""
        extra: dict[str, Any] = {}
        if self.curve_secret_file:
            extra["socket_options"] = CurveFiles(self.curve_secret_file, self.curve_server_file).socket_options()
        return SyncClient(self.brokers, timeout=self.timeout_s, attempts=self.attempts, **extra)
