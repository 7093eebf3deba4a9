"""Options and exit codes of all commands that send requests to a broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from core.daemon.command import CONNECT, SECONDS
from core.daemon.exit_codes import RequestFailed, Unreachable, exits
from core.daemon.option_fields import WholeRange, options
from core.daemon.run import log_options, loop_option
from core.daemon.security_flags import security_options
from core.daemon.terminal import json_option
from core.errors import LocalProtocolError
from core.rpc.connect_times import OTHER_SECURITY
from core.runtime.event_loop import run
from mdp.errors import RequestError
from mdp.wire.options import checked_headers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from mdp.client.client import Client

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


def header_map(headers: Sequence[str]) -> dict[str, str]:
    """Return the headers that `--header` gave; raises click.BadParameter: one is not NAME=TEXT, or they are beyond the limits."""
    split = [header.partition("=") for header in headers]
    try:
        if not all(equals for _, equals, _ in split):
            raise ValueError("a header is NAME=TEXT")
        return checked_headers({name: text for name, _, text in split})
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


def _as_given(context: click.Context, parameter: click.Parameter, headers: tuple[str, ...]) -> tuple[str, ...]:
    """Check headers and keep the texts, which a configuration file can have too."""
    header_map(headers)
    return headers


HEADERS: Final = click.option(
    "--header", "headers", multiple=True, callback=_as_given, metavar="NAME=TEXT", help="For the handler; may be repeated."
)

client_options = options(
    BROKER,
    click.option("--timeout", type=SECONDS, default=2.5, help="Seconds to wait for an answer, per attempt."),
    click.option("--attempts", type=WholeRange(min=1), default=3, help="Times to ask in all."),
    security_options(connects=True),
)
output_options = options(json_option(), loop_option, log_options("warning"))


def ask(talk: Callable[[Client], Awaitable[T]], brokers: Sequence[str], uvloop: bool | None, **settings: Any) -> T:
    """Run a conversation with a broker; raises Unreachable without an answer, RequestFailed for an error of broker or worker."""
    from mdp.client.client import Client  # late: the options are those of daemons too
    from mdp.client.client import Unreachable as NoBroker

    async def converse() -> T:
        async with Client(brokers, **settings) as client:
            return await talk(client)

    with exits({RequestError: RequestFailed, LocalProtocolError: click.UsageError}):
        try:
            return run(converse(), uvloop=uvloop)
        except NoBroker as error:
            raise no_broker(error, secured=settings.get("security") is not None) from None


def no_broker(error: RequestError, *, secured: bool) -> Unreachable:
    """Return the error of a command that reached no broker, with the options to correct.

    `secured`: whether it was given keys, or a password.
    """
    why = f": {error.text}" if error.text else ""
    made = f"in {error.attempts} attempt{'s' * (error.attempts != 1)}"
    if OTHER_SECURITY in error.text:
        fix = "correct the --curve-* or --plain-* options"
    elif secured:  # a broker that cannot read what is encrypted with a wrong key closes the connection, and cannot say why
        fix = "start one, or correct --broker or the --curve-* and --plain-* options"
    else:
        fix = "start one, or correct --broker"
    return Unreachable(f"no broker reached within {error.after_s:.1f} s {made}{why}; {fix}")
