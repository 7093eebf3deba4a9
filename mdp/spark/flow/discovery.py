"""Brokers found by name: what stands behind `name://broker` is asked for where the client is, on the executors."""

from __future__ import annotations

from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

import core
from core.address import parse_connect
from mdp.client.client import Client
from mdp.spark.dispatch_choices import NAMES

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence


@dataclass(frozen=True, slots=True)
class NameServers:
    """Name servers as seen from the executors (`freelance names serve`).

    Attributes:
        servers: their endpoints, most wanted first.
        environment: to which the names belong.

    Raises:
        ValueError, core.InvalidEndpoint: there is none, or an endpoint is not valid.
    """

    servers: tuple[str, ...]
    environment: str = "production"

    def __post_init__(self) -> None:
        if not self.servers:
            raise ValueError("no name server is given")
        for endpoint in self.servers:
            parse_connect(endpoint)


def name_servers(given: NameServers | str | Sequence[str] | None) -> NameServers | None:
    """Return name servers from endpoints, as a sequence or as text separated by commas."""
    if given is None or isinstance(given, NameServers):
        return given
    endpoints = given.split(",") if isinstance(given, str) else given
    return NameServers(tuple(one.strip() for one in endpoints if one.strip()))


@asynccontextmanager
async def named_client(
    names: NameServers, brokers: tuple[str, ...], socket_options: dict[str, Any], **options: Any
) -> AsyncIterator[Client]:
    """Open a client whose brokers are looked up at each attempt to connect; raises LookupError."""
    found = list(entry_points(group=NAMES))
    if not found:
        raise LookupError(f"brokers are found by name where the package is installed, not from --py-files: no entry point {NAMES}")
    make = found[0].load()
    async with (
        make(names.servers, environment=names.environment) as resolver,
        core.Context(resolver=resolver.resolve) as context,
        Client(brokers, context=context, socket_options=socket_options, **options) as client,
    ):
        yield client
