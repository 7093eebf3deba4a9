"""Columns of a reply beside those of the source, as DDL text.

Where the source is asked for its columns, there is no session that could parse the text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from mdp.spark.rows.reply_columns import CLASH_PREFIX
from titanic.spark.options import BadOption

if TYPE_CHECKING:
    from collections.abc import Iterator

# The columns before those of the reply.
HEAD = "uuid string, key string, status string, error string"
HEAD_NAMES = tuple(column.split()[0] for column in HEAD.split(", "))
_QUOTED_NAME = r"`(?:[^`]|``)+`"
_QUOTED = rf"{_QUOTED_NAME}|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_TOKEN = re.compile(rf"{_QUOTED}|.", re.DOTALL)
# A row without a reply has nulls, whatever the service answers.
_NOT_NULL = re.compile(rf"({_QUOTED})|\s+NOT\s+NULL\b", re.DOTALL | re.IGNORECASE)
_COLUMN = re.compile(rf"\s*({_QUOTED_NAME}|[^\s:`]+)(?:\s*:\s*|\s+)(\S.*)", re.DOTALL)


def source_schema(reply: str) -> str:
    """Return the DDL of all columns; raises BadOption if a column of the reply has no free name."""
    names = free_names(reply)
    columns = [f"{_quoted(names[name])} {kind}" if (name := _plain(word)) in names else f"{word} {kind}" for word, kind in _columns(reply)]
    # What is no list of columns is left to Spark, which says so.
    return f"{HEAD}, {_NOT_NULL.sub(lambda found: found[1] or '', ', '.join(columns) or reply)}"


def free_names(reply: str) -> dict[str, str]:
    """Return the columns named like one of the source's, in any case, with the names they get."""
    given = [_plain(word) for word, _ in _columns(reply)]
    renamed = {name: CLASH_PREFIX + name for name in given if name.lower() in HEAD_NAMES}
    taken = {name.lower() for name in given}
    for name, free in renamed.items():
        if free.lower() in taken:
            raise BadOption("reply", f"its column {name} has no free name: there is {free} too")
    return renamed


def _columns(ddl: str) -> list[tuple[str, str]]:
    """Return name and type of each column, as they are written; none if one has no type."""
    found = [_COLUMN.fullmatch(piece) for piece in _pieces(ddl)]
    return [(one[1], one[2].rstrip()) for one in found if one] if all(found) else []


def _pieces(ddl: str) -> Iterator[str]:
    """Yield the text between the commas that separate columns."""
    piece, depth = "", 0
    for token in _TOKEN.findall(ddl):
        depth += (token in "<(") - (token in ">)")
        if token == "," and depth == 0:
            yield piece
            piece = ""
        else:
            piece += token
    yield piece


def _plain(word: str) -> str:
    return word[1:-1].replace("``", "`") if word.startswith("`") else word


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"
