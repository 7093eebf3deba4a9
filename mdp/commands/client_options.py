"""Options and exit codes of all commands that send requests to a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from core.daemon.command import CONNECT, SECONDS
from core.daemon.exit_codes import RequestFailed, Unreachable, exits
from core.daemon.option_fields import options
from core.daemon.run import log_options, loop_option
from core.daemon.security_flags import security_options
from core.daemon.terminal import json_option
from core.errors import LocalProtocolError
from core.runtime.event_loop import run
from mdp.client.client import Client
from mdp.client.client import Unreachable as NoBroker
from mdp.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

__all__ = ["BROKER", "DEFAULT_BROKER", "ask", "client_options", "output_options"]

DEFAULT_BROKER: Final = "tcp://127.0.0.1:5555"
BROKER: Final = click.option(
    "--broker",
    "brokers",
    type=CONNECT,
    multiple=True,
    default=[DEFAULT_BROKER],
    help="Endpoint of the broker; repeated, in order of preference.",
)

T = TypeVar("T")

client_options = options(
    BROKER,
    click.option("--timeout", type=SECONDS, default=2.5, help="Seconds to wait for an answer, per attempt."),
    click.option("--attempts", type=click.IntRange(min=1), default=3, help="Times to ask in all."),
    security_options(connects=True),
)
output_options = options(json_option(), loop_option, log_options("warning"))


def ask(talk: Callable[[Client], Awaitable[T]], brokers: Sequence[str], uvloop: bool | None, **settings: Any) -> T:
    """Run a conversation with a broker; raises Unreachable without an answer, RequestFailed for an error of broker or worker."""

    async def converse() -> T:
        async with Client(brokers, **settings) as client:
            return await talk(client)

    with exits({RequestError: RequestFailed, LocalProtocolError: click.UsageError}):
        try:
            return run(converse(), uvloop=uvloop)
        except NoBroker as error:
            why = f": {error.text}" if error.text else ""
            raise Unreachable(f"no broker reached within {error.after_s:.1f} s{why}") from None
