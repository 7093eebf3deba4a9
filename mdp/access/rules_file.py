"""Strict reader of the files with rules and with policies of services; errors name file, line and remedy.

`mdp.access.rules` and `mdp.access.service_policies` check the content.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, TypeVar

from core.daemon.config import read_toml
from core.daemon.exit_codes import BadConfig
from mdp.access.rules import RuleError, Rules
from mdp.access.service_policies import ServicePolicies

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")


def load_rules(path: str, advice: str = "check the path given to --rules") -> Rules:
    """Read a rules file; raises BadConfig if it is not valid, with the advice if it cannot be read."""
    return _load(path, advice, "allow", Rules)


def load_policies(path: str, advice: str = "check the path given to --policies") -> ServicePolicies:
    """Read a file of policies; raises BadConfig if it is not valid, with the advice if it cannot be read."""
    return _load(path, advice, "policy", ServicePolicies)


def _load(path: str, advice: str, table: str, parse: Callable[[Mapping[str, Any]], T]) -> T:
    text, content = read_toml(path, advice)
    try:
        return parse(content)
    except RuleError as error:
        raise BadConfig(f"{path}:{_line_of(text, error, table)}: {error.reason}") from None


def _line_of(text: str, error: RuleError, name: str) -> int:
    start = re.compile(rf"\s*\[\[\s*[\"']?{name}[\"']?\s*\]\]")
    key = re.compile(rf"\s*[\"']?{re.escape(error.key)}[\"']?\s*[=.]")
    head, table, nearest = re.compile(rf"\s*\[+\s*({name}\s*\.\s*)?{re.escape(error.key)}\b"), -1, 1
    for number, line in enumerate(text.splitlines(), 1):
        if start.match(line):
            table += 1
            if table == error.table:
                nearest = number
        elif error.key and (table == error.table or error.table < 0) and (key.match(line) or head.match(line)):
            return number
    return nearest


def reloading(path: str, load: Callable[[str], T], replace: Callable[[T], None]) -> Callable[[], Callable[[], list[str]]]:
    """Return a function that reads a file again, see `Daemon.on_reload`."""

    def prepare() -> Callable[[], list[str]]:
        content = load(path)

        def apply() -> list[str]:
            replace(content)
            return []

        return apply

    return prepare
