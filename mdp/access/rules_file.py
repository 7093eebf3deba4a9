"""Strict reader of a rules file; errors name file, line and remedy. `mdp.access.rules` checks the content."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from core.daemon.config import read_toml
from core.daemon.exit_codes import BadConfig
from mdp.access.rules import RuleError, Rules

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdp.broker.broker import Broker

__all__ = ["load_rules", "reloading"]

_TABLE = re.compile(r"\s*\[\[\s*[\"']?allow[\"']?\s*\]\]")


def load_rules(path: str) -> Rules:
    """Read a rules file; raises BadConfig if it is not valid."""
    text, content = read_toml(path, "check the path given to --rules")
    try:
        return Rules(content)
    except RuleError as error:
        raise BadConfig(f"{path}:{_line_of(text, error)}: {error.reason}") from None


def _line_of(text: str, error: RuleError) -> int:
    key = re.compile(rf"\s*[\"']?{re.escape(error.key)}[\"']?\s*[=.]")
    head, table, nearest = re.compile(rf"\s*\[+\s*{re.escape(error.key)}\b"), -1, 1
    for number, line in enumerate(text.splitlines(), 1):
        if _TABLE.match(line):
            table += 1
            if table == error.table:
                nearest = number
        elif error.key and (table == error.table or error.table < 0) and (key.match(line) or head.match(line)):
            return number
    return nearest


def reloading(path: str, broker: Broker) -> Callable[[], Callable[[], list[str]]]:
    """Return a function that reads the file again for a broker, see `Daemon.on_reload`."""

    def prepare() -> Callable[[], list[str]]:
        rules = load_rules(path)

        def apply() -> list[str]:
            broker.set_rules(rules)
            return []

        return apply

    return prepare
