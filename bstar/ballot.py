"""Ballots, the record that keeps them over a crash, and the lease that makes one of them the only one.

Source: rules BST-26 to BST-33 and BEY-12 of `specs/bstar.md`.

A ballot is a pair (counter, node id), ordered first by counter. Two nodes never draw the same one because their ids differ; one
node never draws the same one twice because it writes the counter to disk before it uses it. An order without the node id is not
enough: a state message from before a crash makes both servers count on from the same number.

A lease is a promise of the witness: *until then nobody else gets one*. The two ends count it by their own clocks, so the holder
counts from the moment it **sent** its question, and a little less than was promised; the witness counts from the moment it
answered. However long the answer took, the holder stops first.

Pure: octets in and out, `now` in monotonic seconds. The shells do the disk and the wire.
"""

from __future__ import annotations

import struct
import zlib
from enum import IntEnum
from typing import Final, NamedTuple

from bstar.errors import StoreDamaged

__all__ = [
    "CLIENT_JUMP_MAX",
    "COUNTER_MAX",
    "LEASE_MARGIN",
    "NO_BALLOT",
    "RECORD_OCTETS",
    "Answer",
    "Ballot",
    "HighestBallot",
    "LeaseBook",
    "Owner",
    "Record",
    "decode_record",
    "encode_record",
    "held_until",
    "next_counter",
]

# A counter that grew once a millisecond would need 8,900 years to get here; above it the number is somebody's invention.
COUNTER_MAX: Final = (1 << 48) - 1

# Two quartz clocks drift apart by 0.02 %, a badly slewed one by 0.05 %. Forty times that is still only 40 ms of 2 s.
LEASE_MARGIN: Final = 0.02

# What a client may lift the counter by. Clients are not trusted with the number space: a billion lies do not exhaust it.
CLIENT_JUMP_MAX: Final = 1 << 16


class Ballot(NamedTuple):
    """The right to serve, comparable: the higher counter wins, the node id decides between equals."""

    counter: int
    node: int

    def __str__(self) -> str:
        return f"{self.counter}.{self.node:016x}" if self.counter else "none"


NO_BALLOT: Final = Ballot(0, 0)


def next_counter(*known: int) -> int:
    """Return the counter of a new ballot: one above everything known."""
    return max(known) + 1


class HighestBallot:
    """What a client keeps so that a deposed master cannot answer it.

    Attributes:
        seen: the highest ballot an accepted reply carried; sent along with each request.
        dropped: replies refused because their ballot was lower.
    """

    __slots__ = ("dropped", "seen")

    def __init__(self) -> None:
        self.seen = NO_BALLOT
        self.dropped = 0

    def accept(self, ballot: Ballot) -> bool:
        """Return whether a reply under this ballot may be believed, and remember the ballot if so."""
        if ballot < self.seen:
            self.dropped += 1
            return False
        self.seen = ballot
        return True


# --- the record on disk -------------------------------------------------------------------------------------------------------
#
#   offset size
#        0    8  magic  89 42 53 54 41 52 0D 0A   (not text, and a line-end conversion shows)
#        8    1  version, 1
#        9    1  owner: 1 a server of the pair, 2 the witness
#       10    8  node id of the server; of the witness: node id of the highest ballot granted
#       18    8  incarnation: how often the owner was started with this file
#       26    8  counter: server, of the last ballot drawn; witness, of the highest ballot granted
#       34    4  CRC-32 of octets 0 to 33
#       38

_MAGIC: Final = b"\x89BSTAR\r\n"
_RECORD: Final = struct.Struct(">8sBBQQQ")
_CHECK: Final = struct.Struct(">I")
RECORD_OCTETS: Final = _RECORD.size + _CHECK.size
_VERSION: Final = 1


class Owner(IntEnum):
    """Who writes the record: a witness started on the file of a server would forget the server's ballots."""

    SERVER = 1
    WITNESS = 2


class Record(NamedTuple):
    """What survives a crash."""

    owner: Owner
    node: int
    incarnation: int
    counter: int


def encode_record(record: Record) -> bytes:
    """Return the octets of a record; the shell writes them to a new file, syncs, renames and syncs the directory."""
    head = _RECORD.pack(_MAGIC, _VERSION, record.owner, record.node, record.incarnation, record.counter)
    return head + _CHECK.pack(zlib.crc32(head))


def decode_record(octets: bytes, owner: Owner) -> Record:
    """Return the record, or refuse it.

    There is no repair: a counter that was guessed too low is a ballot used twice.

    Args:
        octets: the whole file.
        owner: who wants to use it.

    Raises:
        StoreDamaged: wrong length, magic, version, owner or checksum, or a number out of range.
    """
    if len(octets) != RECORD_OCTETS:
        raise StoreDamaged(f"ballot file has {len(octets)} octets instead of {RECORD_OCTETS}")
    magic, version, kind, node, incarnation, counter = _RECORD.unpack_from(octets)
    if magic != _MAGIC:
        raise StoreDamaged("not a ballot file")
    if _CHECK.unpack_from(octets, _RECORD.size)[0] != zlib.crc32(octets[: _RECORD.size]):
        raise StoreDamaged("checksum of the ballot file does not match")
    if version != _VERSION:
        raise StoreDamaged(f"ballot file of version {version}, this program reads version {_VERSION}")
    if kind != owner:
        raise StoreDamaged(f"ballot file belongs to a {'witness' if kind == Owner.WITNESS else 'server'}")
    if counter > COUNTER_MAX or (owner is Owner.SERVER and node == 0):
        raise StoreDamaged("ballot file holds a number out of range")
    return Record(owner, node, incarnation, counter)


# --- the lease ----------------------------------------------------------------------------------------------------------------


def held_until(asked_at: float, lease_s: float) -> float:
    """Return until when the asker may count on a lease, by its own clock.

    Args:
        asked_at: when the question was sent, not when the answer came.
        lease_s: seconds the witness granted.
    """
    return asked_at + lease_s * (1.0 - LEASE_MARGIN)


class Answer(NamedTuple):
    """What the witness says.

    Attributes:
        granted: the asker has the lease for `wait_s` from now.
        ballot: the holder's, after this answer.
        highest: highest ballot ever granted; an asker below it has to draw a new one.
        wait_s: granted: length of the lease; refused: seconds after which asking again can succeed.
    """

    granted: bool
    ballot: Ballot
    highest: Ballot
    wait_s: float


class LeaseBook(NamedTuple):
    """The witness's whole state: who has the lease, until when, and the highest ballot it ever granted.

    A witness that was restarted has forgotten who held the lease. Until every lease it may have granted has run out
    (`closed_until`) it grants nothing new. It does renew a lease whose holder says it still has it: that one is the only one
    there can be. During that time the *same node* gets no new ballot either, because what it calls its lease may be a question
    that was old when it arrived.
    """

    holder: Ballot = NO_BALLOT
    until: float = 0.0
    highest: Ballot = NO_BALLOT
    closed_until: float = 0.0

    def ask(self, ballot: Ballot, *, holding: bool, lease_s: float, now: float) -> tuple[LeaseBook, Answer]:
        """Answer a server that wants, or wants to keep, the lease.

        Args:
            ballot: under which it wants to serve.
            holding: it has a lease for this ballot that had not run out when it asked.
            lease_s: how long it wants it for.
            now: monotonic seconds.
        """
        free = now >= self.until
        if ballot < self.highest:
            wait_s = 0.0  # waiting does not help: a higher ballot does
        elif now < self.closed_until and not holding:
            wait_s = self.closed_until - now
        elif not free and ballot.node != self.holder.node:
            wait_s = self.until - now
        else:
            book = self._replace(holder=ballot, until=now + lease_s, highest=ballot)
            return book, Answer(True, ballot, ballot, lease_s)
        holder = NO_BALLOT if free else self.holder
        return self, Answer(False, holder, self.highest, wait_s)

    def release(self, ballot: Ballot, now: float) -> LeaseBook:
        """Take the lease back from a server that has stopped serving; a release that is not the holder's changes nothing."""
        return self._replace(until=now) if ballot == self.holder else self
