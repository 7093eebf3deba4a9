"""Options of the broker: intervals, times, numbers and sizes, each with a unit and a reason.

Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Final, TypedDict

from core.machine.value_copies import check_counts, check_not_negative, check_positive

if TYPE_CHECKING:
    from collections.abc import Mapping

    import core
    from core.option_table import OptionValue
    from core.security.credentials import Secured
    from mdp.access.rules import Rules
    from mdp.access.service_policies import ServicePolicies

# Memory of one request beyond its bytes: record, dictionary entries, queue slot. Counting it makes `memory_max_bytes` a true
# limit for floods of tiny requests, and bounds their number.
REQUEST_OVERHEAD_BYTES: Final = 512


class BrokerSettings(TypedDict, total=False):
    """Fields of `BrokerOptions`, as keyword arguments."""

    heartbeat_ms: float
    liveness: int
    busy_ms: float
    start_hold_ms: float | None
    queue_ms: float
    queue_max: int
    queue_max_bytes: int
    client_queue_max: int
    memory_max_bytes: int
    services_max: int
    absent_max: int
    service_idle_ms: float
    workers_max: int
    channels_max: int
    deliveries_max: int
    unread_max_bytes: int
    unread_total_max_bytes: int
    unread_hold_ms: float
    hold_replies_ms: float
    parts_max_bytes: int
    results_max: int
    results_max_bytes: int
    results_ms: float
    letters_max: int
    letters_max_bytes: int
    mmi_max_bytes: int
    manage: bool


class BrokerArguments(BrokerSettings, total=False):
    """Keyword arguments of `mdp.Broker`."""

    context: core.Context | None
    security: Secured | None
    socket_options: Mapping[str, OptionValue | str] | None
    rules: Rules | None
    policies: ServicePolicies | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """Limits and times that an operator can set; every number is positive unless 0 is mentioned.

    Attributes:
        heartbeat_ms: interval between heartbeats of broker and worker; the guide's programs use 2500.
        liveness: number of silent heartbeats after which a worker is dead (7.5 s by default).
        busy_ms: maximum time that a worker without heartbeats while it works (MDP/0.1, MDP-37) may keep a request before the request goes
            to another worker. If a handler takes longer, its request is executed twice.
        start_hold_ms: how long a broker that has just started or taken over lets requests wait for a service that no worker has offered
            yet, instead of refusing them with NO_SERVICE; 0 for not at all. When left out, `heartbeat_ms` times `liveness`: by then
            every live worker of the previous broker has reconnected.
        queue_ms: maximum time that a request waits for a service without workers, and that a request of a client that cannot
            cancel (MDP/0.1, 0.2) waits at all (MDP-33).
        queue_max: maximum requests waiting for one service; a burst of 100,000 must fit.
        queue_max_bytes: maximum bytes of all requests waiting for one service.
        client_queue_max: maximum waiting requests of one client, so that one client cannot shut out the others.
        memory_max_bytes: maximum bytes of all requests, queued or running, counting `REQUEST_OVERHEAD_BYTES` more for each.
        services_max: maximum services known at a time; names come from peers (fault B3).
        absent_max: maximum services without workers that exist only because clients wait for them.
        service_idle_ms: how long a service that had workers is remembered without workers and requests (MMI-07).
        workers_max: maximum workers registered at a time.
        channels_max: maximum workers of one connection, so that one process cannot take the places of all.
        deliveries_max: how many workers may be lost with the same request before it is a dead letter (fault B7).
        unread_max_bytes: maximum bytes sent to one peer and not read by it; beyond it the peer is disconnected (fault N5).
        unread_total_max_bytes: the same for all peers together; beyond it those with the most unread bytes are disconnected.
        unread_hold_ms: how long workers are paused for a peer that reads slower than they answer; begins at half of the two limits.
        hold_replies_ms: maximum time for which replies to a client with 128 or more open requests are collected, so that up to 64 leave
            in one write; 0 sends each read's replies at once.
        parts_max_bytes: maximum bytes of PARTIALs kept for a client with a dialect without them (MDP-43), per request.
        results_max: maximum replies kept by idempotency key (IDM-04).
        results_max_bytes: maximum bytes of these replies.
        results_ms: how long a reply is kept by its key; must be longer than a client repeats a request.
        letters_max: maximum dead letters kept for operators.
        letters_max_bytes: maximum bytes of the dead letters.
        mmi_max_bytes: maximum bytes of an answer of `mmi.*` (fault B11).
        manage: whether `mmi.drain`, `mmi.disable`, `mmi.enable` and reading, repeating and dropping dead letters are offered; any client
            that can connect can use them.
    """

    heartbeat_ms: float = 2500
    liveness: int = 3
    busy_ms: float = 300_000
    start_hold_ms: float | None = None
    queue_ms: float = 60_000
    queue_max: int = 200_000
    queue_max_bytes: int = 64 * 2**20
    client_queue_max: int = 150_000
    memory_max_bytes: int = 256 * 2**20
    services_max: int = 20_000
    absent_max: int = 1_000
    service_idle_ms: float = 60_000
    workers_max: int = 50_000
    channels_max: int = 10_000
    deliveries_max: int = 5
    unread_max_bytes: int = 64 * 2**20
    unread_total_max_bytes: int = 256 * 2**20
    unread_hold_ms: float = 1000
    hold_replies_ms: float = 1
    parts_max_bytes: int = 16 * 2**20
    results_max: int = 10_000
    results_max_bytes: int = 64 * 2**20
    results_ms: float = 600_000
    letters_max: int = 1_000
    letters_max_bytes: int = 16 * 2**20
    mmi_max_bytes: int = 2**20
    manage: bool = False

    def __post_init__(self) -> None:
        holds = ("start_hold_ms", "hold_replies_ms")
        check_counts(**{one.name: getattr(self, one.name) for one in fields(self) if str(one.type) == "int"})
        check_positive(**{one.name: getattr(self, one.name) for one in fields(self) if str(one.type) == "float" and one.name not in holds})
        check_not_negative(**{name: getattr(self, name) for name in holds})

    @property
    def expiry_s(self) -> float:
        """Silence after which a worker is dead, in seconds: one liveness window."""
        return self.heartbeat_ms * self.liveness / 1000

    @property
    def settle_s(self) -> float:
        """Time in which connections lost together are noticed, in seconds: a sixteenth of the heartbeat interval."""
        return self.heartbeat_ms / 16_000

    @property
    def start_hold_s(self) -> float:
        """Time for which NO_SERVICE is withheld after the broker begins to serve, in seconds."""
        hold_ms = self.expiry_s * 1000 if self.start_hold_ms is None else self.start_hold_ms
        return hold_ms / 1000
