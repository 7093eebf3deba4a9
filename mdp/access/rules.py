"""Access rules: users that may call, serve or manage services. Pure: takes the content of a TOML file, answers questions.

    [[allow]]
    who = ["web-*", "cron"]           # globs of names: in the authorized-keys file, or of PLAIN users
    call = ["echo", "orders.*"]       # globs of services

    [[allow]]
    who = ["orders-worker"]
    serve = ["orders.*"]

    [[allow]]
    who = ["titanic"]
    serve = ["titanic.*"]
    see_users = ["titanic.*"]         # as a worker of these it gets the user of each request

    [[allow]]
    who = ["broker-b"]
    call = ["mmi.lending", "echo"]
    pass_users = ["echo"]             # for these, the user named in its requests is accepted

    [[allow]]
    anonymous = true                  # peers without a name: NULL, inproc
    call = ["status"]

Everything else is refused. A glob has `*`, `?` and `[…]`, and matches the whole name; service names are bytes, and `?` is one byte.
Management: `mmi.drain`, `disable`, `enable` and the verbs of dead letters need `manage` of the service they act on; reports
(`mmi.services`, `workers`, `stats`, `dlq`, `lending`, …) need `call` of their own name, or `manage` of any service; `mmi.service` needs
any right to the service; `mmi.allowed` needs `see_users` of any service; `mmi.protocol` and `mmi.pair` are allowed for all, because
clients need them first.
"""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from core.machine.value_copies import KeepsFields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Verb: TypeAlias = Literal["call", "serve", "manage", "see_users", "pass_users"]
VERBS: Final[tuple[Verb, ...]] = ("call", "serve", "manage", "see_users", "pass_users")
_KEYS: Final = ("who", "anonymous", *VERBS)
# Each question of a new peer scans all tables; a larger file should use groups of names.
TABLES_MAX: Final = 1000
GLOBS_MAX: Final = 1000  # in one list
GLOB_CHARACTERS_MAX: Final = 255


class RuleError(KeepsFields, ValueError):
    """Rules or policies are not valid."""

    def __init__(self, table: int, key: str, reason: str) -> None:
        super().__init__(reason)
        self.table = table  # index of the `[[allow]]` or `[[policy]]`, from 0; -1 for the file
        self.key = key  # in the table, "" for all of it
        self.reason = reason  # one clause, with a remedy


@dataclass(frozen=True, slots=True)
class Rights:
    """Rights of one peer: patterns of service names by verb."""

    call: tuple[re.Pattern[bytes], ...] = ()
    serve: tuple[re.Pattern[bytes], ...] = ()
    manage: tuple[re.Pattern[bytes], ...] = ()
    see_users: tuple[re.Pattern[bytes], ...] = ()
    pass_users: tuple[re.Pattern[bytes], ...] = ()

    def may(self, verb: Verb, service: bytes) -> bool:
        patterns: tuple[re.Pattern[bytes], ...] = getattr(self, verb)
        return any(pattern.match(service) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class _Allow:
    who: re.Pattern[str] | None
    anonymous: bool
    patterns: Mapping[Verb, re.Pattern[bytes]]

    def concerns(self, user: str | None) -> bool:
        if user is None:
            return self.anonymous
        return self.who is not None and self.who.match(user) is not None


class Rules:
    """Rules of one file, from its content as `tomllib` returns it; raises RuleError."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._allows = [_parse(number, table) for number, table in enumerate(tables(content, "allow", _KEYS, "rules"))]

    def rights_of(self, user: str | None) -> Rights:
        """Return the rights of a peer; `user` is its name from the authenticator, None if it was not authenticated."""
        mine = [allow.patterns for allow in self._allows if allow.concerns(user)]
        return Rights(*(tuple(patterns[verb] for patterns in mine if verb in patterns) for verb in VERBS))


def _parse(number: int, table: Mapping[str, Any]) -> _Allow:
    anonymous = table.get("anonymous", False)
    if not isinstance(anonymous, bool):
        raise RuleError(number, "anonymous", "anonymous is true or false")
    who = globs(number, "who", table["who"]) if "who" in table else None
    if who is None and not anonymous:
        raise RuleError(number, "", "whom does it allow? write who = [NAME, …], or anonymous = true")
    patterns: dict[Verb, re.Pattern[bytes]] = {
        verb: re.compile(globs(number, verb, table[verb]).encode()) for verb in VERBS if verb in table
    }
    if not patterns:
        raise RuleError(number, "", "what does it allow? write call, serve, manage, see_users or pass_users = [SERVICE, …]")
    return _Allow(None if who is None else re.compile(who), anonymous, patterns)


def tables(content: Mapping[str, Any], name: str, known: Sequence[str], what: str) -> list[Mapping[str, Any]]:
    """Return the tables `[[name]]` of a file, which has nothing else and which have only known keys; raises RuleError."""
    for key in content:
        if key != name:
            raise RuleError(-1, key, f"{key!r} is not a key of {what}; write tables [[{name}]]")
    found = content.get(name)
    if not isinstance(found, list) or not found:
        raise RuleError(-1, name, f"no table [[{name}]]; write one, or leave the {what} out")
    if len(found) > TABLES_MAX:
        raise RuleError(-1, name, f"{len(found)} tables, {TABLES_MAX} are allowed; use globs")
    for number, table in enumerate(found):
        if not isinstance(table, dict):
            raise RuleError(number, "", f"[[{name}]] is a table; write it with two brackets and its keys below")
        check_keys(number, "", table, known)
    return found


def check_keys(number: int, within: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in table:
        if key not in known:
            from core.daemon.config import suggestion  # late: for a mistake only, and it needs what reads configurations

            advice = suggestion(key, known, f"keys are {', '.join(known)}")
            raise RuleError(number, within or key, f"no key {key!r}{' in ' * bool(within)}{within}; {advice}")


def globs(number: int, key: str, value: object) -> str:
    """Return the expression of a list of globs; raises RuleError."""
    if not isinstance(value, list) or not value or not all(isinstance(glob, str) for glob in value):
        raise RuleError(number, key, f'{key} is a list of texts, such as {key} = ["echo", "orders.*"]')
    if len(value) > GLOBS_MAX:
        raise RuleError(number, key, f"{len(value)} globs, {GLOBS_MAX} are allowed")
    for glob in value:
        if not 0 < len(glob) <= GLOB_CHARACTERS_MAX or not glob.isprintable():
            raise RuleError(number, key, f"{glob[:40]!r} is not a glob: 1 to {GLOB_CHARACTERS_MAX} printable characters")
    return "|".join(fnmatch.translate(glob) for glob in value)
