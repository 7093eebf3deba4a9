"""The division of a batch into runs: consecutive messages of one command, as columns.

Frequent commands begin with bytes that determine all of their frames: they are rows of a table, for all dialects, and are decoded without
a list of frames. A message without a row becomes a run of one message, which `mdp.wire.events` decodes or rejects.

    begins with                                key                     name             rest, "tail"
    0.3 REQUEST  01 0f MDPC03.01               id8                     01 nn service    [options][body …]
        FINAL    01 0f MDPW03.04               token8                                   [body …]
        PARTIAL  01 0f MDPW03.03               token8                                   [body …]
    0.2 REQUEST  01 06 MDPC02 01 01 01                                 01 nn service    [body …]
        FINAL    01 06 MDPW02 01 01 04         01 08 token8 01 00                       [body …]
        PARTIAL  01 06 MDPW02 01 01 03         01 08 token8 01 00                       [body …]
    0.1 REQUEST  01 00 01 06 MDPC01                                    01 nn service    [body …]
        REPLY    01 00 01 06 MDPW01 01 01 03   01 08 token8 01 00                       [body …]

Each first frame has the MORE flag, so further bytes follow those in the table. Key and name are compared as bytes, header included, with
those of open requests and known services: only messages with equal bytes are accepted, so everything in front of the body is valid.

Pure.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

from mypy_extensions import mypyc_attr

from core.zmtp.frames import MORE_HEADERS, encode_prefix
from mdp.wire.commands import (
    CLIENT_REQUEST_03,
    EMPTY,
    HEAD_BYTES,
    ID_BYTES,
    MDPC01,
    MDPC02,
    MDPW01,
    MDPW02,
    NUMBERED_BYTES,
    V01,
    V02,
    V03,
    WORKER_FINAL_03,
    WORKER_PARTIAL_03,
    Dialect,
)

if TYPE_CHECKING:
    from core.zmtp.scan import Batch

# Encoded empty options frame, with the MORE flag.
NO_OPTIONS: Final = b"\x01\x00"
# The token is an address in MDP/0.1 and 0.2: a frame of 8 bytes, then the empty frame.
ADDRESS_START: Final = MORE_HEADERS[ID_BYTES]
ADDRESS_END: Final = MORE_HEADERS[0]
_HEAD_BYTES: Final = len(MORE_HEADERS[NUMBERED_BYTES]) + HEAD_BYTES  # first bytes of a message, by which its rows are found
_SHORT_HEADER_BYTES: Final = 2
_NO_COLUMN: Final[list[bytes]] = []  # nothing is ever added to it: a list less is made for each run


class Verb(IntEnum):
    """The kind of a run of messages."""

    EVENT = 0  # anything else
    REQUEST = 1
    FINAL = 2
    PARTIAL = 3


class Layout:
    """A row of the table."""

    __slots__ = ("dialect", "head", "key_end", "keyed", "named", "options", "verb")

    def __init__(
        self, verb: Verb, dialect: Dialect, head: bytes, key_bytes: int = 0, *, named: bool = False, options: bool = False
    ) -> None:
        self.verb = verb
        self.dialect: Dialect = dialect
        self.head = head  # first bytes of the message
        self.keyed = key_bytes > 0
        self.key_end = len(head) + key_bytes  # offset of the end of the key
        self.named = named  # whether the name of a service follows the key
        self.options = options  # whether an options frame follows the name


def _head_03(command: bytes) -> bytes:
    return MORE_HEADERS[NUMBERED_BYTES] + command


_ADDRESS_BYTES: Final = len(ADDRESS_START) + ID_BYTES + len(ADDRESS_END)
_BROKER_LAYOUTS: Final = (
    Layout(Verb.REQUEST, V03, _head_03(CLIENT_REQUEST_03), ID_BYTES, named=True, options=True),
    Layout(Verb.REQUEST, V02, encode_prefix([MDPC02, b"\x01"]), named=True),
    Layout(Verb.REQUEST, V01, encode_prefix([EMPTY, MDPC01]), named=True),
    Layout(Verb.FINAL, V03, _head_03(WORKER_FINAL_03), ID_BYTES),
    Layout(Verb.FINAL, V02, encode_prefix([MDPW02, b"\x04"]), _ADDRESS_BYTES),
    Layout(Verb.FINAL, V01, encode_prefix([EMPTY, MDPW01, b"\x03"]), _ADDRESS_BYTES),
    Layout(Verb.PARTIAL, V03, _head_03(WORKER_PARTIAL_03), ID_BYTES),
    Layout(Verb.PARTIAL, V02, encode_prefix([MDPW02, b"\x03"]), _ADDRESS_BYTES),
)


def _table(layouts: tuple[Layout, ...]) -> dict[bytes, list[Layout]]:
    table: dict[bytes, list[Layout]] = {}
    for layout in layouts:
        table.setdefault(layout.head[:_HEAD_BYTES], []).append(layout)
    return table


AT_BROKER: Final = _table(_BROKER_LAYOUTS)


@mypyc_attr(acyclic=True, free_list_len=1)  # one for each read: it refers to bytes only
class Run:
    """Consecutive messages of one peer with one command and dialect."""

    __slots__ = ("alike", "first", "keys", "layout", "names", "tails")

    def __init__(
        self, layout: Layout | None, first: int, keys: list[bytes], names: list[bytes], tails: list[bytes], *, alike: bool = False
    ) -> None:
        self.layout = layout  # their row of the table, None for a message without a row
        self.first = first  # index of the first message in the batch
        self.keys = keys  # key of each message; empty for layouts without key
        self.names = names  # encoded service name of each message, with the header of the options frame if there is one
        self.tails = tails  # encoded frames of each message after the name, options frame included
        self.alike = alike  # the names are all the same; they may be although it is False


def cut(batch: Batch, table: dict[bytes, list[Layout]]) -> list[Run]:
    octets, starts, ends = batch.octets, batch.starts, batch.ends
    count = len(starts)
    if count == 1:  # a round trip
        start = starts[0]
        layouts = table.get(octets[start : start + _HEAD_BYTES])
        return [_cut_one(layouts, octets, start, ends[0], 0)]
    runs: list[Run] = []
    at = 0
    while at < count:
        start = starts[at]
        head = octets[start : start + _HEAD_BYTES]
        stop = at + 1
        while stop < count:
            start = starts[stop]
            if octets[start : start + _HEAD_BYTES] != head:
                break
            stop += 1
        layouts = table.get(head)
        if layouts is None or stop - at == 1:
            runs += [_cut_one(layouts, octets, starts[index], ends[index], index) for index in range(at, stop)]
        elif len(layouts[0].head) == _HEAD_BYTES:
            if stop - at < count:
                runs.append(_columns(layouts[0], octets, starts[at:stop], ends[at:stop], at))
            else:
                runs.append(_columns(layouts[0], octets, starts, ends, at))
        else:
            _cut_longer(layouts, octets, starts[at:stop], ends[at:stop], at, runs)
        at = stop
    return runs


def _cut_one(layouts: list[Layout] | None, octets: bytes, start: int, end: int, first: int) -> Run:
    """Return the run of one message, for which one of these rows may match."""
    if layouts is not None:
        for layout in layouts:
            head_end = start + len(layout.head)
            if octets[start:head_end] == layout.head:  # compiled, `startswith` with an offset costs six times as much
                tail_at = start + layout.key_end
                keys = [octets[head_end:tail_at]] if layout.keyed else _NO_COLUMN
                if not layout.named:
                    return Run(layout, first, keys, _NO_COLUMN, [octets[tail_at:end]])
                name_at = tail_at
                tail_at += _SHORT_HEADER_BYTES + octets[tail_at + 1]
                name_end = tail_at + _SHORT_HEADER_BYTES if layout.options else tail_at
                return Run(layout, first, keys, [octets[name_at:name_end]], [octets[tail_at:end]], alike=True)
    return Run(None, first, _NO_COLUMN, _NO_COLUMN, _NO_COLUMN)


def _cut_longer(layouts: list[Layout], octets: bytes, starts: list[int], ends: list[int], first: int, runs: list[Run]) -> None:
    """Append the runs of messages with equal first bytes, whose further bytes select the row."""
    at, count = 0, len(starts)
    while at < count:
        found = None
        for layout in layouts:
            if octets.startswith(layout.head, starts[at]):
                found = layout
        stop = at + 1
        if found is None:
            runs.append(Run(None, first + at, _NO_COLUMN, _NO_COLUMN, _NO_COLUMN))
        else:
            head = found.head
            while stop < count and octets.startswith(head, starts[stop]):
                stop += 1
            runs.append(_columns(found, octets, starts[at:stop], ends[at:stop], first + at))
        at = stop


def _columns(layout: Layout, octets: bytes, starts: list[int], ends: list[int], first: int) -> Run:
    """Return the run of messages of one row."""
    key_at, key_end = len(layout.head), layout.key_end
    keys = [octets[start + key_at : start + key_end] for start in starts] if layout.keyed else _NO_COLUMN
    if not layout.named:
        return Run(layout, first, keys, _NO_COLUMN, [octets[start + key_end : end] for start, end in zip(starts, ends)])
    after = _SHORT_HEADER_BYTES if layout.options else 0
    size_at = key_end + 1
    # Most runs are for one service: then all names end at the same place.
    name_end = key_end + _SHORT_HEADER_BYTES + octets[starts[0] + size_at] + after
    name = octets[starts[0] + key_end : starts[0] + name_end]
    for start in starts:
        if octets[start + key_end : start + name_end] != name:
            break
    else:
        names = [name] * len(starts)  # one object, whose hash is computed once
        tail_at = name_end - after
        tails = [octets[start + tail_at : end] for start, end in zip(starts, ends)]
        return Run(layout, first, keys, names, tails, alike=True)
    tails_at = [start + key_end + _SHORT_HEADER_BYTES + octets[start + size_at] for start in starts]
    names = [octets[start + key_end : tail_at + after] for start, tail_at in zip(starts, tails_at)]
    return Run(layout, first, keys, names, [octets[tail_at:end] for tail_at, end in zip(tails_at, ends)])
