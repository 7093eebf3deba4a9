"""A TOML file with one table per command, read strictly: what is wrong is named with file, line and advice.

    [broker]                      # `mdp broker --config this.toml`
    bind = ["tcp://*:5555"]
    heartbeat_ms = 2500

Keys are the long options without dashes; `-` and `_` are the same. Tables of other commands of the program are ignored, so one file
serves all of them. This module must not know click: `core.daemon.command` knows the keys of a command.
"""

from __future__ import annotations

import re
import tomllib
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from core.daemon.exit_codes import BadConfig
from core.runtime.cold_files import remedy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# Far more than any configuration; a gigabyte given by mistake must not be read into memory.
CONFIG_BYTES_MAX: Final = 1024 * 1024

_TABLE = re.compile(r"\s*\[\s*([^\[\]]+?)\s*\]")
_KEY = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([A-Za-z0-9_-]+))\s*[=.]""")


def read_toml(path: str, advice: str, bytes_max: int = CONFIG_BYTES_MAX) -> tuple[str, dict[str, Any]]:
    """Return a file's text and TOML content; raises BadConfig, with the advice if it cannot be read."""
    try:
        with open(path, "rb") as file:
            octets = file.read(bytes_max + 1)
    except (OSError, ValueError) as error:
        raise BadConfig(f"{path}: {getattr(error, 'strerror', None) or error}; {remedy(error, advice)}") from None
    if len(octets) > bytes_max:
        raise BadConfig(f"{path}: more than {bytes_max} bytes; is this the right file?")
    text = ""
    try:
        text = octets.decode()
        return text, tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = octets.count(b"\n", 0, error.start) + 1
        raise BadConfig(f"{path}:{line}: not UTF-8; save the file as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"line (\d+)", str(error))
        line = int(found[1]) if found else text.count("\n") + 1
        raise BadConfig(f"{path}:{line}: not TOML: {error}; texts need quotes, lists need brackets") from None
    except (RecursionError, ValueError) as error:  # nesting or a number too large for the parser
        raise BadConfig(f"{path}: {type(error).__name__}: {error}; this is not a configuration file") from None


class ConfigFile:
    """One file, parsed. Raises BadConfig if it cannot be read, with the advice, is too large or is not TOML."""

    def __init__(self, path: str, advice: str = "check the path given to --config") -> None:
        self.path = path
        self._text, self._tables = read_toml(path, advice)

    def table(self, name: str, commands: Iterable[str], keys: Iterable[str]) -> dict[str, Any]:
        """Return the values of a command's table, `-` in keys as `_`; raises BadConfig for an unknown table or key."""
        known_tables = sorted(commands)
        *above, _ = ["", *accumulate(name.split("."), "{}.{}".format)]
        for problem in (problem for group in above for problem in self.strays(group, known_tables, name)):
            raise BadConfig(problem)
        values, problems = self.values(name, keys)
        for problem in problems:
            raise BadConfig(problem)
        return values

    def has(self, table: str) -> bool:
        return bool(self._within(table))

    def strays(self, group: str, tables: Sequence[str], name: str) -> Iterator[str]:
        """Yield the unknown tables of a group ("": the program), and values outside of any, such as `name`."""
        for found, content in self._within(group).items():
            table = f"{group}.{found}" if group else found
            if not isinstance(content, dict):
                yield f"{self.place(group, found)}: {found} is outside any table; write it below [{name}]"
            elif table not in tables:
                advice = suggestion(table, tables, f"tables are {', '.join(tables)}")
                yield f"{self.place(table)}: no command has a table [{table}]; {advice}"

    def values(self, name: str, keys: Iterable[str]) -> tuple[dict[str, Any], list[str]]:
        """Return the values of a table by known key, `-` in keys as `_`, and the problems of the others."""
        known = sorted(keys)
        values: dict[str, Any] = {}
        problems = []
        for key, value in self._within(name).items():
            plain = key.replace("-", "_")
            if plain in known:
                values[plain] = value
            else:
                advice = suggestion(plain, known, f"keys are {', '.join(known)}")
                problems.append(f"{self.place(name, key)}: [{name}] has no key {key}; {advice}")
        return values, problems

    def _within(self, table: str) -> dict[str, Any]:
        tables: Any = self._tables
        for part in table.split(".") if table else ():
            tables = tables.get(part, {}) if isinstance(tables, dict) else {}
        return tables if isinstance(tables, dict) else {}

    def place(self, table: str, key: str | None = None) -> str:
        """Return `file:line` of a key or table, as a search of the text finds it: parsers keep no positions."""
        current, nearest = "", 1
        for number, line in enumerate(self._text.splitlines(), start=1):
            if head := _TABLE.match(line):
                current = head[1].strip("\"' ")
                if current == table:
                    nearest = number
                    if key is None:
                        break
            elif found := _KEY.match(line):
                written = found[1] or found[2] or found[3] or ""
                if current == table and key is not None and written.replace("-", "_") == key.replace("-", "_"):
                    return f"{self.path}:{number}"
                if not current and written == table:
                    nearest = number
        return f"{self.path}:{nearest}"


def suggestion(word: str, known: Sequence[str], otherwise: str) -> str:
    """Return "did you mean ...?" for a similar word, else the other advice."""
    import difflib  # late: for a mistake only

    close = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}?" if close else otherwise


def toml_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_text(item) for item in value) + "]"
    escaped = str(value).replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in escaped) + '"'
