"""Mark file of a mirrored directory: whether it may be served as the store (specs/titanic.md §10, §11).

States of a directory, with the function on each edge:

    no mark (a store that was never mirrored) --MirroredDisk.attach--> STORE --_settled: the mirror is away--> STORE, alone
    STORE, alone --MirroredDisk.join--> STORE
    no mark --Replica--> MIRROR empty --_swap--> MIRROR changing --_swap--> MIRROR in step --_hello, the store is alone--> MIRROR behind
    MIRROR behind --_swap--> MIRROR changing
    MIRROR --titanic promote, PairedTitanic--> STORE of a later epoch

    STORE             has everything that was acknowledged, unless a later epoch exists; may be served
    STORE, alone      has acknowledged records its mirror lacks
    MIRROR in step    has everything, unless its store has acknowledged alone since
    MIRROR behind     complete, but older
    MIRROR changing   files were being exchanged: contents unknown; `doubt`: the disk failed, what is read may not be on it

`segment_log.SegmentLog.open` refuses a MIRROR, so that one store never becomes two.
"""

from __future__ import annotations

import enum
import json
from typing import TYPE_CHECKING, Final, NamedTuple

from titanic.errors import JournalError
from titanic.journal.inspection import read_file
from titanic.journal.recovery import replace_file

if TYPE_CHECKING:
    from titanic.journal.disk import Disk

MARK_NAME: Final = "mirror"


class Step(enum.StrEnum):
    """State of the data of a mirror."""

    EMPTY = "empty"  # no data yet
    IN_STEP = "in step"  # everything that was acknowledged, as far as it knows
    BEHIND = "behind"  # complete but older: the store acknowledged alone
    CHANGING = "changing"  # files were being exchanged, so the contents are unknown


class Mark(NamedTuple):
    """The file `mirror` in a mirrored directory."""

    role: str = "store"  # "store", or "mirror"
    epoch: int = 0  # raised by each promotion; a mirror refuses a store of a lower epoch
    step: Step = Step.IN_STEP  # of a mirror; a store is always IN_STEP with itself
    alone: bool = False  # of a store: it acknowledged records its mirror lacks
    doubt: bool = False  # of a mirror: its disk failed, so its files may be in memory only and must not be compared
    store: bytes = b""  # the id of the store, b"" before it is known
    paired: bool = False  # half of a pair (`titanic.paired_store`): its step does not tell whether the other half acknowledged alone

    def encode(self) -> bytes:
        """Return the file: one line of JSON."""
        return json.dumps({**self._asdict(), "step": self.step.value, "store": self.store.hex()}).encode() + b"\n"

    @classmethod
    def decode(cls, data: bytes) -> Mark:
        """Read the file; raises JournalError (MIRROR) when it is something else."""
        try:
            row = json.loads(data)
            switches = (bool(row["alone"]), bool(row["doubt"]))
            store, paired = bytes.fromhex(row["store"]), bool(row.get("paired", False))
            mark = cls(str(row["role"]), int(row["epoch"]), Step(row["step"]), *switches, store, paired)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise JournalError(MARK_NAME, "cannot be read", "MIRROR") from error
        if mark.role not in ("store", "mirror"):
            raise JournalError(MARK_NAME, f"role {mark.role!r}", "MIRROR")
        return mark


def read_mark(disk: Disk) -> Mark | None:
    """Return the mark of a directory, None if it was never mirrored; raises JournalError, OSError."""
    return Mark.decode(read_file(disk, MARK_NAME)) if MARK_NAME in disk.names() else None


def write_mark(disk: Disk, mark: Mark) -> None:
    """Write a mark; it is on the disk when this returns. Raises OSError."""
    replace_file(disk, MARK_NAME, mark.encode())
    disk.sync_directory()


def check_is_store(disk: Disk) -> None:
    """Raise JournalError (MIRROR) if this directory is a mirror: serving it would create two stores from one."""
    mark = read_mark(disk)
    if mark is not None and mark.role == "mirror":
        raise JournalError(MARK_NAME, f"this directory is a mirror ({mark.step.value}); titanic promote makes it a store", "MIRROR")


def check_is_of_no_pair(disk: Disk) -> None:
    """Raise JournalError (MIRROR) if this directory belongs to a pair, whose other half may have newer data."""
    mark = read_mark(disk)
    if mark is not None and mark.paired:
        reason = (
            f"this directory is one of a pair's; serve it with --bstar (without the file {MARK_NAME!r} in it, it is a store of its own)"
        )
        raise JournalError(MARK_NAME, reason, "MIRROR")
