"""The body of `freelance names serve`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from core.daemon.exit_codes import BadConfig
from core.daemon.http import serve_page
from core.daemon.metrics import figures_page
from freelance.errors import CatalogFull, MalformedMessage
from freelance.names.server import NameServer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from core.daemon.http import NamedAddress
    from core.runtime.lifetime import Lifetime
    from core.security.credentials import Secured

# Environment, name, and its endpoints: {"bind": […], "connect": […]}.
InitialName = tuple[str, str, "Mapping[str, list[str]]"]


@dataclass(frozen=True)
class NameServerDaemonOptions:
    """Options of `freelance names serve`.

    Attributes:
        endpoint: endpoint for clients and the other servers.
        peers: endpoint of another server of the pool; repeatable.
        identity: endpoint that clients connect to.  [default: --bind, with this machine's name for *]
        names: initial endpoints of names.
        source: file that `names` are from, for errors.
        sync_s: seconds between comparisons with each peer.
        security: which peers may connect.
        http: address of the page, None for none.
    """

    endpoint: str
    peers: Sequence[str] = ()
    identity: str | None = None
    names: Sequence[InitialName] = ()
    source: str = ""
    sync_s: float = 5.0
    security: Secured | None = None
    http: NamedAddress | None = None


async def serve_names(options: NameServerDaemonOptions, lifetime: Lifetime) -> None:
    """Answer questions about names until the process is asked to stop; raises BadConfig or core.ZMQError."""
    peers = options.peers
    server = NameServer(options.endpoint, peers=peers, identity=options.identity, sync_s=options.sync_s, security=options.security)
    async with server, serve_page(options.http, figures_page("freelance names", "freelance_names", lambda: server.figures)):
        for environment, name, ends in options.names:
            try:
                server.put(environment, name, **ends)
            except (MalformedMessage, CatalogFull) as error:
                raise BadConfig(f"{options.source}: {environment}.{name}: {error}") from None
        fields = {"names": len(options.names), "peers": len(peers)}
        lifetime.ready("name server runs", endpoint=server.endpoint, identity=server.identity, **fields)
        await lifetime.until_stopped()
