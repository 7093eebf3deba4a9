"""Options of `dispatch` from the configuration of the session, such as `spark.mdp.broker` and `spark.mdp.window`."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from mdp.spark.flow.discovery import name_servers
from mdp.spark.flow.routes import BROKER
from mdp.spark.rows.options import Bounds, bounds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

    from pyspark.sql import SparkSession

    from mdp.spark.flow.discovery import NameServers

    Setting: TypeAlias = Callable[[str], str | None]

PREFIX = "spark.mdp."
# Settings that are no bounds.
_OTHERS = ("broker", "names", "names_environment", "via")


def session_broker(spark: SparkSession) -> Sequence[str]:
    """Return the brokers of `spark.mdp.broker`, separated by commas; raises ValueError if there are none."""
    return read_broker(lambda name: spark.conf.get(name, None))


def session_bounds(spark: SparkSession, options: Mapping[str, Any]) -> Bounds:
    """Return the bounds of a job: its own options, else those of the session, else the defaults; raises ValueError, TypeError."""
    _check_names(spark)
    return read_bounds(lambda name: spark.conf.get(name, None), options)


def session_via(spark: SparkSession) -> str:
    """Return `spark.mdp.via`, "broker" if it is not set."""
    return read_via(lambda name: spark.conf.get(name, None))


def session_names(spark: SparkSession) -> NameServers | None:
    """Return the name servers of `spark.mdp.names`, with the environment of `spark.mdp.names_environment`; None if there are none."""
    return read_names(lambda name: spark.conf.get(name, None))


def read_broker(setting: Setting) -> tuple[str, ...]:
    """Return the brokers as `session_broker` does; `setting` returns the text of a setting, also in a task."""
    brokers = tuple(one.strip() for one in (setting(f"{PREFIX}broker") or "").split(",") if one.strip())
    if not brokers:
        raise ValueError(f"no broker is given, neither as broker= nor as {PREFIX}broker")
    return brokers


def read_names(setting: Setting) -> NameServers | None:
    """Return the name servers as `session_names` does; `setting` returns the text of a setting."""
    found = name_servers(setting(f"{PREFIX}names") or None)
    environment = setting(f"{PREFIX}names_environment")
    return found if found is None or environment is None else replace(found, environment=environment)


def read_via(setting: Setting) -> str:
    """Return `spark.mdp.via`, "broker" if it is not set; `setting` returns the text of a setting."""
    return setting(f"{PREFIX}via") or BROKER


def read_bounds(setting: Setting, options: Mapping[str, Any]) -> Bounds:
    """Return the bounds as `session_bounds` does; `setting` returns the text of a setting, None without one."""
    found = dict(options)
    for field in fields(Bounds):
        text = None if field.name in found else setting(f"{PREFIX}{field.name}")
        if text is not None:
            found[field.name] = _read(field.name, str(field.type), text)
    return bounds_of(found)


def _check_names(spark: SparkSession) -> None:
    """Raise ValueError if there is a setting that nothing reads."""
    known = sorted({f"{PREFIX}{one.name}" for one in fields(Bounds)} | {f"{PREFIX}{name}" for name in _OTHERS})
    unknown = sorted(name for name in getattr(spark.conf, "getAll", ()) if name.startswith(PREFIX) and name not in known)  # of PySpark 4
    if unknown:
        raise ValueError(f"there is no setting {', '.join(unknown)}; there are {', '.join(known)}")


def _read(name: str, kind: str, text: str) -> Any:
    try:
        if kind.startswith("bool"):
            return {"true": True, "false": False}[text.lower()]
        if kind.startswith("int"):
            return int(text)
        return float(text) if kind.startswith("float") else text
    except (KeyError, ValueError):
        raise ValueError(f"{PREFIX}{name} is {text!r}, not a value of type {kind.partition(' ')[0]}") from None
