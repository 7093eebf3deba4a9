"""Options of `dispatch` from the configuration of the session, such as `spark.mdp.broker` and `spark.mdp.window`."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from mdp.spark.flow.discovery import name_servers
from mdp.spark.flow.routes import BROKER
from mdp.spark.rows.options import Bounds, bounds_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    from pyspark.sql import SparkSession

    from mdp.spark.flow.discovery import NameServers

    Setting: TypeAlias = Callable[[str], str | None]

PREFIX = "spark.mdp."
# Settings that are no bounds.
_OTHERS = ("broker", "names", "names_environment", "via")


def settings_of(spark: SparkSession) -> Setting:
    """Return a reader of the settings of a session; raises ValueError for an unknown setting."""
    known = sorted({f"{PREFIX}{one.name}" for one in fields(Bounds)} | {f"{PREFIX}{name}" for name in _OTHERS})
    unknown = sorted(name for name in getattr(spark.conf, "getAll", ()) if name.startswith(PREFIX) and name not in known)  # of PySpark 4
    if unknown:
        raise ValueError(f"there is no setting {', '.join(unknown)}; there are {', '.join(known)}")
    return lambda name: spark.conf.get(name, None)


def read_broker(setting: Setting) -> tuple[str, ...]:
    """Return the brokers of `spark.mdp.broker`, separated by commas; raises ValueError if there are none."""
    brokers = tuple(one.strip() for one in (setting(f"{PREFIX}broker") or "").split(",") if one.strip())
    if not brokers:
        raise ValueError(f"no broker is given, neither as broker= nor as {PREFIX}broker")
    return brokers


def read_names(setting: Setting) -> NameServers | None:
    """Return the name servers of `spark.mdp.names`, with the environment of `spark.mdp.names_environment`; None if there are none."""
    found = name_servers(setting(f"{PREFIX}names") or None)
    environment = setting(f"{PREFIX}names_environment")
    return found if found is None or environment is None else replace(found, environment=environment)


def read_via(setting: Setting) -> str:
    """Return `spark.mdp.via`, "broker" if it is not set."""
    return setting(f"{PREFIX}via") or BROKER


def read_bounds(setting: Setting, options: Mapping[str, Any]) -> Bounds:
    """Return the bounds of a job: its own options, else those that are set, else the defaults; raises ValueError, TypeError."""
    found = dict(options)
    for field in fields(Bounds):
        text = None if field.name in found else setting(f"{PREFIX}{field.name}")
        if text is not None:
            found[field.name] = _read(field.name, str(field.type), text)
    return bounds_of(found)


def _read(name: str, kind: str, text: str) -> Any:
    try:
        if kind.startswith("bool"):
            return {"true": True, "false": False}[text.lower()]
        if kind.startswith("int"):
            return int(text)
        return float(text) if kind.startswith("float") else text
    except (KeyError, ValueError):
        raise ValueError(f"{PREFIX}{name} is {text!r}, not a value of type {kind.partition(' ')[0]}") from None
