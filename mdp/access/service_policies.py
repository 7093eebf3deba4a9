"""Policies that an operator gives services, whatever their workers announce. Pure: takes the content of a TOML file, answers questions.

    [[policy]]
    services = ["pay", "mail.*"]              # globs of services
    rate = {per_s = 50, burst = 10}           # false: no rate, whatever workers announce
    retry = {attempts = 4, base_s = 0.5}      # false: no retries

    [[policy]]
    services = ["*"]
    priority_max = "normal"                   # requests of high priority are normal ones

Of each key, the first table counts that has it and names the service. What no table says is left to workers and clients.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Final, Literal

from mdp.access.rules import RuleError, check_keys, globs, tables
from mdp.wire.policies import PRIORITIES, Rate, Retry

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEYS: Final = ("services", "rate", "retry", "priority_max")
_HIGHEST: Final = ("high", "normal")


@dataclass(frozen=True, slots=True)
class OwnPolicies:
    """Policies of one service; None where the operator says nothing, False where there is to be none."""

    rate: Rate | Literal[False] | None = None
    retry: Retry | Literal[False] | None = None
    priority_max: int | None = None


class ServicePolicies:
    """Policies of one file, from its content as `tomllib` returns it; raises `mdp.RuleError`."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._tables = [_parse(number, table) for number, table in enumerate(tables(content, "policy", _KEYS, "policies"))]

    def of(self, service: bytes) -> OwnPolicies | None:
        """Return the policies of a service, None if nothing is said about it."""
        found: dict[str, Any] = {}
        for pattern, values in self._tables:
            if pattern.match(service):
                found = values | found
        return OwnPolicies(**found) if found else None


def _parse(number: int, table: Mapping[str, Any]) -> tuple[re.Pattern[bytes], dict[str, Any]]:
    if "services" not in table:
        raise RuleError(number, "", 'which services? write services = ["pay", "mail.*"]')
    pattern = re.compile(globs(number, "services", table["services"]).encode())
    values: dict[str, Any] = {}
    kinds: tuple[tuple[str, type[Rate | Retry]], ...] = (("rate", Rate), ("retry", Retry))
    for key, kind in kinds:
        if key in table:
            values[key] = _policy(number, key, kind, table[key])
    if "priority_max" in table:
        if table["priority_max"] not in _HIGHEST:
            raise RuleError(number, "priority_max", f"priority_max is one of {', '.join(_HIGHEST)}")
        values["priority_max"] = PRIORITIES[table["priority_max"]]
    if not values:
        raise RuleError(number, "", "what is their policy? write rate, retry or priority_max")
    return pattern, values


def _policy(number: int, key: str, kind: type[Rate | Retry], value: object) -> Rate | Retry | Literal[False]:
    if value is False:
        return False
    names = [field.name for field in fields(kind)]
    if not isinstance(value, dict):
        raise RuleError(number, key, f"{key} is false, or a table of {', '.join(names)}")
    check_keys(number, key, value, names)
    if kind is Rate and "per_s" not in value:
        raise RuleError(number, key, "how many a second? write rate = {per_s = NUMBER}")
    try:
        return kind.of(value)
    except ValueError as error:
        raise RuleError(number, key, f"{key}: {error}") from None
