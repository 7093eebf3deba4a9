"""The bodies of `bstar run` and `bstar witness`."""

from __future__ import annotations

from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from bstar.machine.fsm import State
from bstar.pair import Pair
from bstar.witness import Witness
from core.daemon.http import serve_page
from core.daemon.metrics import figures_page
from core.runtime.event_loop import until_one_ends

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bstar.net.voter import Request
    from core.daemon.http import NamedAddress
    from core.runtime.lifetime import Lifetime
    from core.security.credentials import Secured

__all__ = ["ServerDaemonOptions", "WitnessDaemonOptions", "serve_server", "serve_witness"]


@dataclass(frozen=True)
class ServerDaemonOptions:
    """Options of `bstar run`.

    Attributes:
        primary: which of the two this is.  [required]
        local: endpoint to publish the state on.
        remote: endpoint on which the peer publishes its state.
        frontend: endpoint for clients.
        witness: endpoint of the witness; without one the pair is fenced.
        heartbeat_ms: the same on both servers and the witness.
        store: ballot file, kept over restarts; one for each server.
        pair_key: key of the pair, None without one.
        control: endpoint for status and switchover; for operators only.
        compatible: be compatible with a stock member, fatal states included.
        lone_backup: a backup that never heard its primary may serve.
        handler: answers requests; None echoes them.
        security: which peers may connect, and who we are.
        http: address of the page, None for none.
    """

    primary: bool
    local: str
    remote: str
    frontend: str
    witness: str | None = None
    heartbeat_ms: int = 1000
    store: str | None = None
    pair_key: bytes | None = None
    control: str | None = None
    compatible: bool = False
    lone_backup: bool = False
    handler: Callable[[Request], Any] | None = None
    security: Secured | None = None
    http: NamedAddress | None = None


async def serve_server(options: ServerDaemonOptions, lifetime: Lifetime) -> None:
    """Run one server of a pair until asked to stop, then finish open requests; raises errors of `bstar` and core.ZMQError."""
    role = State.PRIMARY if options.primary else State.BACKUP
    pair = Pair(
        role,
        local=options.local,
        remote=options.remote,
        witness=options.witness,
        heartbeat_ms=options.heartbeat_ms,
        store=options.store,
        pair_key=options.pair_key,
        control=options.control,
        compatible=options.compatible,
        lone_backup=options.lone_backup,
        security=options.security,
    )
    page = figures_page("bstar run", "bstar", pair.status, not_ready=lambda: pair.trouble)
    async with pair, serve_page(options.http, page):
        endpoint = pair.voter(options.frontend, handler=options.handler or _echo)
        lifetime.ready("server runs", role=role.name.lower(), frontend=endpoint, local=pair.endpoint, guard=pair.guard)
        await lifetime.until_stopped_or(pair.serve_forever())
        await pair.drain(lifetime.drain_s)


def _echo(request: Request) -> list[bytes]:
    return request.body


@dataclass(frozen=True)
class WitnessDaemonOptions:
    """Options of `bstar witness`, for one pair or several.

    Attributes:
        binds: endpoint for the two servers of a pair; one for each pair.
        heartbeat_ms: that of the pair, the longest of several.
        stores: file that keeps the highest ballot over a restart; one for each --bind, in order.
        pair_keys: keys of the pairs, one for each endpoint; or none.
        security: which servers may connect.
        http: address of the page, None for none.
    """

    binds: Sequence[str]
    heartbeat_ms: int = 1000
    stores: Sequence[str] = ()
    pair_keys: Sequence[bytes | None] = ()
    security: Secured | None = None
    http: NamedAddress | None = None


async def serve_witness(options: WitnessDaemonOptions, lifetime: Lifetime) -> None:
    """Run the witnesses of pairs until asked to stop; raises bstar.StoreLocked, bstar.StoreDamaged or core.ZMQError."""
    async with AsyncExitStack() as stack:
        ones = [
            Witness(endpoint, heartbeat_ms=options.heartbeat_ms, store=store, pair_key=key, security=options.security)
            for endpoint, store, key in zip_longest(options.binds, options.stores, options.pair_keys)
        ]
        for one in ones:
            await stack.enter_async_context(one)
        page = figures_page(
            "bstar witness",
            "bstar_witness",
            lambda: sum((one.counters for one in ones), Counter()),
            not_ready=lambda: "; ".join(filter(None, (one.trouble for one in ones))),
        )
        await stack.enter_async_context(serve_page(options.http, page))
        lifetime.ready("witness runs", endpoint=", ".join(one.endpoint for one in ones), pair_key=bool(options.pair_keys))
        await lifetime.until_stopped_or(until_one_ends(*(one.serve_forever() for one in ones)))
