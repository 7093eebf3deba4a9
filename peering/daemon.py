"""The body of `peering broker`."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from core.daemon.http import serve_page
from core.daemon.metrics import Table, figures_page
from core.errors import ZMQError
from peering.broker import Broker
from peering.task_router import RouterLimits

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from core.daemon.http import NamedAddress
    from core.runtime.lifetime import Lifetime
    from core.security.credentials import Secured

__all__ = ["BrokerDaemonOptions", "Peers", "serve_broker"]

log = logging.getLogger(__name__)

Peers = dict[str, tuple[str, str] | None]  # endpoints of each peer, cloud and state; None for the default ones


@dataclass(frozen=True)
class BrokerDaemonOptions:
    """Options of `peering broker`.

    Attributes:
        name: of the broker.
        peers: other brokers, by name.
        localfe: endpoint for clients.
        localbe: endpoint for workers.
        cloudfe: endpoint for tasks of peers.
        statebe: endpoint the state is published on.
        control: endpoint for `peering status`.
        directory: of the default endpoints, "" for the working directory.
        limits: of the broker.
        peers_of: returns the peers in changed options on reload, None if these did not change.
        security: which peers may connect, and who we are.
        http: address of the page, None for none.
    """

    name: str
    peers: Peers = field(default_factory=dict)
    localfe: str | None = None
    localbe: str | None = None
    cloudfe: str | None = None
    statebe: str | None = None
    control: str | None = None
    directory: str = ""
    limits: RouterLimits = field(default_factory=RouterLimits)
    peers_of: Callable[[Mapping[str, Any]], Peers | None] = lambda changed: None
    security: Secured | None = None
    http: NamedAddress | None = None


async def serve_broker(options: BrokerDaemonOptions, lifetime: Lifetime) -> None:
    """Serve until the process is asked to stop, then finish open tasks; raises peering.BadName, peering.DuplicateName or core.ZMQError."""
    known = dict(options.peers)
    endpoints = {flow: getattr(options, flow) for flow in ("localfe", "localbe", "cloudfe", "statebe", "control")}
    serving = Broker(options.name, known, **endpoints, directory=options.directory, security=options.security, **asdict(options.limits))

    def change(changed: Mapping[str, Any]) -> set[str]:
        wanted = options.peers_of(changed)
        return {"peers"} if wanted is not None and _change_peers(serving, known, wanted) else set()

    page = figures_page("peering broker", "peering", serving.status, tables=lambda: _peer_table(serving))
    async with serving, serve_page(options.http, page):
        lifetime.on_change(change)
        endpoints = {flow: getattr(serving, flow) for flow in endpoints}
        lifetime.ready("broker runs", broker=options.name, peers=",".join(known), **endpoints)
        await lifetime.until_stopped_or(serving.serve_forever())
        if not await serving.drain(lifetime.drain_s):
            log.warning("drain time is over, tasks are still open", extra={"open": serving.machine.open})


def _change_peers(serving: Broker, before: Peers, after: Peers) -> bool:
    """Add and remove peers to match `after`; update `before`. Return whether all succeeded."""
    for name in [name for name, endpoints in before.items() if after.get(name, ()) != endpoints]:
        serving.remove_peer(name)
        del before[name]
    complete = True
    for name in after.keys() - before.keys():
        try:
            serving.add_peer(name, after[name])
            before[name] = after[name]
        except (ValueError, ZMQError) as error:  # BadName and DuplicateName are ValueErrors
            log.error("a peer was refused", extra={"peer": name, "reason": str(error)})
            complete = False
    return complete


def _peer_table(serving: Broker) -> list[Table]:
    peers = serving.status()["peers"]
    rows = [[name, "yes" if peer["up"] else "no", peer["capacity"], peer["lent"]] for name, peer in peers.items()]
    return [Table("Peers", ("peer", "up", "capacity", "lent to it"), rows)]
