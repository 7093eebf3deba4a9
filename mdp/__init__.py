"""Majordomo: a service broker, its clients and its workers (MDP/0.1, 0.2 and our draft 0.3).

    async with mdp.Broker() as broker: ...
    async with mdp.Worker("tcp://…", "echo", handler=echo) as worker: ...
    async with mdp.Client("tcp://…") as client: await client.request("echo", b"hello")

Names are imported when they are first used: a client does not load the broker, nor a worker the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from majordomo_toolkit import __version__
from majordomo_toolkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from mdp.access.rules import RuleError, Rules
    from mdp.access.service_policies import ServicePolicies
    from mdp.app.app import App
    from mdp.app.dependencies import Depends
    from mdp.app.middleware import CallNext, Middleware
    from mdp.broker.broker import Broker
    from mdp.broker.limits import BrokerOptions
    from mdp.client.client import Client, Outcome
    from mdp.client.middleware import ClientCall
    from mdp.client.sync import SyncClient
    from mdp.cluster.lending_broker import LendingBroker
    from mdp.cluster.paired_broker import PairedBroker
    from mdp.errors import (
        BadArguments,
        BadRequest,
        BadResult,
        Busy,
        Cancelled,
        ClientClosed,
        DeadLetter,
        DeadlineExceeded,
        Forbidden,
        HandlerError,
        NoService,
        NotSupported,
        Overrun,
        RequestError,
        Timeout,
        TooLarge,
        Unreachable,
        WorkerLost,
    )
    from mdp.request import Request
    from mdp.typed.descriptions import Description, describe
    from mdp.wire.policies import Rate, Retry
    from mdp.wire.progress import Progress
    from mdp.worker.handler import service
    from mdp.worker.worker import Worker, WorkerOptions

__all__ = [
    "App",
    "BadArguments",
    "BadRequest",
    "BadResult",
    "Broker",
    "BrokerOptions",
    "Busy",
    "CallNext",
    "Cancelled",
    "Client",
    "ClientCall",
    "ClientClosed",
    "DeadLetter",
    "DeadlineExceeded",
    "Description",
    "Depends",
    "Forbidden",
    "HandlerError",
    "LendingBroker",
    "Middleware",
    "NoService",
    "NotSupported",
    "Outcome",
    "Overrun",
    "PairedBroker",
    "Progress",
    "Rate",
    "Request",
    "RequestError",
    "Retry",
    "RuleError",
    "Rules",
    "ServicePolicies",
    "SyncClient",
    "Timeout",
    "TooLarge",
    "Unreachable",
    "Worker",
    "WorkerLost",
    "WorkerOptions",
    "describe",
    "service",
    "__version__",
]

if not TYPE_CHECKING:  # a type checker would take any name for one of ours
    __getattr__ = lazy_names(
        __name__,
        {
            "mdp.errors": __all__,  # those that are in no other one
            "mdp.access.rules": ("RuleError", "Rules"),
            "mdp.access.service_policies": ("ServicePolicies",),
            "mdp.app.app": ("App",),
            "mdp.app.dependencies": ("Depends",),
            "mdp.app.middleware": ("CallNext", "Middleware"),
            "mdp.broker.broker": ("Broker",),
            "mdp.broker.limits": ("BrokerOptions",),
            "mdp.client.client": ("Client", "Outcome"),
            "mdp.client.middleware": ("ClientCall",),
            "mdp.client.sync": ("SyncClient",),
            "mdp.cluster.lending_broker": ("LendingBroker",),
            "mdp.cluster.paired_broker": ("PairedBroker",),
            "mdp.request": ("Request",),
            "mdp.typed.descriptions": ("Description", "describe"),
            "mdp.wire.policies": ("Rate", "Retry"),
            "mdp.wire.progress": ("Progress",),
            "mdp.worker.handler": ("service",),
            "mdp.worker.worker": ("Worker", "WorkerOptions"),
        },
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
