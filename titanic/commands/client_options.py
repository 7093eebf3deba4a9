"""Calls of a command to a store that serves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

import mdp
from core.daemon.exit_codes import RequestFailed, exits
from core.errors import LocalProtocolError
from core.runtime.event_loop import run
from mdp.commands.client_options import no_broker
from titanic.client import Client
from titanic.errors import TitanicError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

T = TypeVar("T")


def ask(talk: Callable[[Client], Coroutine[Any, Any, T]], brokers: Sequence[str], uvloop: bool | None, **options: Any) -> T:
    """Run `talk` with a client; raises Unreachable without a broker, RequestFailed if broker or store refused."""

    async def converse() -> T:
        async with Client(brokers, **options) as client:
            return await talk(client)

    with exits({mdp.RequestError: RequestFailed, TitanicError: RequestFailed, LocalProtocolError: click.UsageError}):
        try:
            return run(converse(), uvloop=uvloop)
        except mdp.Unreachable as error:
            raise no_broker(error, secured=options.get("security") is not None) from None
