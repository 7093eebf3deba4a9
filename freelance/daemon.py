"""The body of `freelance serve`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from core.daemon.http import serve_page
from core.daemon.metrics import figures_page
from core.rpc.handlers import echo
from freelance.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable

    from core.daemon.http import NamedAddress
    from core.runtime.lifetime import Lifetime
    from core.security.credentials import Secured

__all__ = ["ServerDaemonOptions", "serve_server"]


@dataclass(frozen=True)
class ServerDaemonOptions:
    """Options of `freelance serve`.

    Attributes:
        endpoint: endpoint for clients.
        identity: endpoint that clients connect to.  [default: --bind, with this machine's name for *]
        model: of the clients.
        running_max: maximum requests being handled.
        handler: function from the body's frames to the reply's.
        security: which clients may connect.
        http: address of the page, None for none.
    """

    endpoint: str
    identity: str | None = None
    model: Literal[1, 2, 3] = 3
    running_max: int = 1000
    handler: Callable[[list[bytes]], Any] = echo
    security: Secured | None = None
    http: NamedAddress | None = None


async def serve_server(options: ServerDaemonOptions, lifetime: Lifetime) -> None:
    """Answer requests until the process is asked to stop, then finish open ones; raises core.ZMQError or Unreachable."""
    server = Server(
        options.endpoint,
        options.handler,
        model=options.model,
        identity=options.identity,
        running_max=options.running_max,
        security=options.security,
    )
    async with server, serve_page(options.http, figures_page("freelance serve", "freelance", lambda: server.counters)):
        lifetime.ready("server runs", endpoint=server.endpoint, identity=server.identity, model=str(options.model))
        await lifetime.until_stopped()
        await server.drain(lifetime.drain_s)
