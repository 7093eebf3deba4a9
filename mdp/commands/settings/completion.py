"""Names of services for the completion of a shell; the broker is asked, with a short timeout."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import click

import core
from core.daemon.security_flags import NAMES, SecurityFiles
from core.machine.peer_text import read_json
from core.runtime.event_loop import run
from mdp.client.client import Client, Unreachable
from mdp.commands.client_options import DEFAULT_BROKER
from mdp.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from core.security.credentials import Secured

# A person waits at a prompt.
TIMEOUT_S: Final = 0.5


def service_names(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Return the names of services that begin so, at the broker of the options given so far."""
    values = {name: context.params.get(name) for name in NAMES if any(name == one.name for one in context.command.params)}
    logging.disable()  # a line in the middle of a prompt
    try:
        security = SecurityFiles(values, listens=False, connects=True).security
        names = run(_ask(context.params.get("brokers") or [DEFAULT_BROKER], security))
    except (RequestError, Unreachable, click.ClickException, core.ZMQError, OSError, ValueError):  # a prompt is no place for errors
        return []
    return sorted(name for name in names if name.startswith(begun))


async def _ask(brokers: Sequence[str], security: Secured | None) -> list[str]:
    async with Client(brokers, security=security, timeout=TIMEOUT_S, attempts=1) as client:
        code, *data = await client.request("mmi.services", b"")
    listed = read_json(data[0]) if code == b"200" and data else []
    rows = listed if isinstance(listed, list) else []
    names = [row.get("name") for row in rows if isinstance(row, dict)]
    return [name for name in names if isinstance(name, str) and name.isprintable()]
