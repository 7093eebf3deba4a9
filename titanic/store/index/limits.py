"""Limits of a store and of delivery. Pure.

Not compiled: what the command line shows of an option is read from the annotations and the docstring.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.machine.value_copies import check_counts, check_not_negative, check_positive


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a store.

    Attributes:
        requests_max: requests not closed; a million entries take about 400 MB of memory.
        bytes_max: bytes of their records on disk; 16 GiB fit on the smallest servers.
        service_requests_max: requests not closed of one service, so that one absent service cannot fill the store.
        keys_max: number of keys of closed requests that are remembered (IDM-04).
        key_age_ms: how long they are remembered; a day covers a job that is run again.
        user_share: percent of `requests_max` and `bytes_max` that one authenticated user may take; 100 for no limit.
        retain_ms: an answered or dead-lettered request is closed after this time; 0 keeps it until its client closes it (TSP-17).
    """

    requests_max: int = 1_000_000
    bytes_max: int = 16 * 1024**3
    service_requests_max: int = 500_000
    user_share: int = 50
    keys_max: int = 100_000
    key_age_ms: int = 86_400_000
    retain_ms: int = 0

    def __post_init__(self) -> None:
        check_counts(requests_max=self.requests_max, bytes_max=self.bytes_max, service_requests_max=self.service_requests_max)
        check_not_negative(keys_max=self.keys_max, key_age_ms=self.key_age_ms, retain_ms=self.retain_ms)
        if self.user_share not in range(1, 101):
            raise ValueError(f"user_share is 1 to 100 percent, not {self.user_share}")

    @property
    def user_requests_max(self) -> int:
        """Requests not closed of one user."""
        return max(1, self.requests_max * self.user_share // 100)

    @property
    def user_bytes_max(self) -> int:
        """Bytes of the records of one user."""
        return self.bytes_max * self.user_share // 100


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchOptions:
    """Windows and back-off of delivery.

    Attributes:
        window: requests of one service in flight; enough to keep a few fast workers busy over one round trip.
        window_total: requests of all services in flight; below the window of an mdp.Client.
        retry_s: longest wait before the first retry of a request; doubles with each.
        retry_max_s: longest wait before any retry.
        probe_s: longest wait before an absent service is probed again; doubles with each.
        probe_max_s: longest wait between two probes; the guide passes once per second.
        probes_max: probes in flight, so that many absent services cost no more than a few.
    """

    window: int = 256
    window_total: int = 800
    retry_s: float = 0.5
    retry_max_s: float = 60.0
    probe_s: float = 0.1
    probe_max_s: float = 1.0
    probes_max: int = 64

    def __post_init__(self) -> None:
        check_counts(window=self.window, window_total=self.window_total, probes_max=self.probes_max)
        check_positive(retry_s=self.retry_s, retry_max_s=self.retry_max_s, probe_s=self.probe_s, probe_max_s=self.probe_max_s)
