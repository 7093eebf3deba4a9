"""Space held for the rows of a batch before the first one is stored (SPB-08). Pure.

What is held counts as in use for all other requests, so the limits of the store are lowered by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from core.zmtp.frames import encode_message
from titanic.errors import StoreFull
from titanic.journal.record import record_size
from titanic.store.index.tables import IndexTables

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable

    from titanic.store.index.limits import Limits


class Need(NamedTuple):
    """Space for some requests of one user to one service."""

    owner: bytes
    service: bytes
    requests: int
    octets: int  # of their records


SMALLEST_BYTES: Final = record_size(len(encode_message([b"x", b""])) + 28)  # of a REQUEST without key, user and headers
ROW_BYTES: Final = 150  # maximum size of a REQUEST record without key and body


class ReservedIndex(IndexTables):
    """Index that holds space for requests that are not there yet."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self._held_requests = 0
        self._held_octets = 0
        self._held_of: dict[bytes, Need] = {}  # by owner

    def check_space(self, needs: Iterable[Need]) -> None:
        """Raise StoreFull if not all of them fit now."""
        requests = octets = 0
        services: dict[bytes, int] = {}
        owners: dict[bytes, Need] = {}
        for need in needs:
            requests += need.requests
            octets += need.octets
            services[need.service] = services.get(need.service, 0) + need.requests
            if need.owner:
                owners[need.owner] = _sum(owners.get(need.owner), need)
        limits = self.limits
        _check("requests_max", self.requests_in_use, limits.requests_max, requests)
        _check("bytes_max", self.bytes_in_use, limits.bytes_max, octets)
        for service, count in services.items():
            _check("service_requests_max", self.services.get(service, 0), limits.service_requests_max, count)
        for owner, need in owners.items():
            used = self.owned_by(owner)
            _check("user_share of requests_max", used[0], limits.user_requests_max, need.requests)
            _check("user_share of bytes_max", used[1], limits.user_bytes_max, need.octets)

    def hold(self, need: Need) -> None:
        """Hold space until `give_back`, also where there is none."""
        self._change(need, 1)

    def give_back(self, need: Need) -> None:
        """Give held space back, to the requests it was held for or to all."""
        self._change(need, -1)

    @property
    def limit_reached(self) -> str:
        """Return the limit of the store by which every new request is refused, "" if there is none."""
        limits = self.limits
        try:
            _check("requests_max", self.requests_in_use, limits.requests_max, 1)
            _check("bytes_max", self.bytes_in_use, limits.bytes_max, SMALLEST_BYTES)
        except StoreFull as full:
            return f"{full.limit} ({full.used} of {full.most} in use)"
        return ""

    @property
    def requests_in_use(self) -> int:
        return len(self.entries) + self._held_requests

    @property
    def bytes_in_use(self) -> int:
        return self.bytes_used + self._held_octets

    def owned_by(self, owner: bytes) -> tuple[int, int]:
        """Return the requests and bytes of a user, with what is held for them."""
        mine, held = self.owned.get(owner), self._held_of.get(owner)
        requests, octets = (len(mine), mine.octets) if mine is not None else (0, 0)
        return (requests, octets) if held is None else (requests + held.requests, octets + held.octets)

    def _change(self, need: Need, sign: int) -> None:
        requests, octets = sign * need.requests, sign * need.octets
        self._held_requests += requests
        self._held_octets += octets
        # The hot path compares with these alone.
        self._requests_max -= requests
        self._bytes_max -= octets
        self._count_service(need.service, requests)
        if need.owner:
            held = _sum(self._held_of.pop(need.owner, None), Need(need.owner, b"", requests, octets))
            if held.requests:
                self._held_of[need.owner] = held


def never_fits(limits: Limits, owner: bytes, rows: Counter[bytes], chunks: int, octets: int) -> str:
    """Return why a batch could never be stored, chunks and commit included; empty if it could.

    `rows` is their number for each service.
    """
    requests, bytes_max, who = limits.requests_max, limits.bytes_max, "the store"
    if owner:
        requests, bytes_max, who = limits.user_requests_max, limits.user_bytes_max, "one user"
    count = rows.total()
    if count + chunks + 1 > requests:
        return f"{count} rows in {chunks} chunks, and {who} may have {requests} requests"
    if 2 * octets + ROW_BYTES * count > bytes_max:
        return f"{octets} bytes, which are stored twice for a while, and {who} may have {bytes_max}"
    if max(rows.values(), default=0) > limits.service_requests_max:
        return f"{max(rows.values())} rows for one service, which may have {limits.service_requests_max} requests"
    return ""


def _sum(one: Need | None, other: Need) -> Need:
    return other if one is None else one._replace(requests=one.requests + other.requests, octets=one.octets + other.octets)


def _check(limit: str, used: int, most: int, needed: int) -> None:
    if used + needed > most:
        raise StoreFull(limit, used, most, needed)
