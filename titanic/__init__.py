"""Titanic: a disk-backed store-and-forward service on Majordomo (RFC 9, TSP): what it acknowledged is never lost.

    async with titanic.Client("tcp://127.0.0.1:5555") as store:
        ticket = await store.submit("echo", b"hello", key="order-17")
        reply = await ticket.result(timeout=60)
        await ticket.close()

Names are imported when they are first used: a client does not load the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from majordomo_toolkit import __version__
from majordomo_toolkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from titanic.client import Client, Outcome, Ticket
    from titanic.errors import (
        BadRequest,
        Damaged,
        DeadLettered,
        Expired,
        Forbidden,
        JournalError,
        KeyConflict,
        MirrorAway,
        OptionsNotSupported,
        Pending,
        StoreFull,
        StoreLocked,
        TitanicError,
        Unavailable,
        UnknownRequest,
        VersionTooNew,
        Wounded,
    )
    from titanic.journal.disk import HeldDisk, RealDisk
    from titanic.journal.group_commit import Journal, JournalOptions
    from titanic.journal.segment_log import LogOptions
    from titanic.mirror.replica_link import MirrorLine
    from titanic.mirror.replica_server import Mirror
    from titanic.paired_store import PairedOptions, PairedTitanic
    from titanic.store.index.limits import DispatchOptions, Limits
    from titanic.store.service import Service, ServiceOptions
    from titanic.store.store import Store
    from titanic.sync import SyncClient, SyncOutcome, SyncTicket

__all__ = ["BadRequest", "OptionsNotSupported", "Client", "Damaged", "DeadLettered", "DispatchOptions", "Expired", "Forbidden", "HeldDisk"]
__all__ += ["Journal", "JournalError", "JournalOptions", "KeyConflict", "Limits", "LogOptions", "Mirror", "MirrorAway", "MirrorLine"]
__all__ += ["Outcome", "PairedOptions", "PairedTitanic", "Pending", "RealDisk", "Service", "ServiceOptions", "Store", "StoreFull"]
__all__ += ["StoreLocked", "SyncClient", "SyncOutcome", "SyncTicket", "Ticket", "TitanicError", "Unavailable", "UnknownRequest"]
__all__ += ["VersionTooNew", "Wounded", "__version__"]

if not TYPE_CHECKING:  # a type checker would take any name for one of ours
    __getattr__ = lazy_names(
        __name__,
        {
            "titanic.errors": __all__,  # those that are in no other one
            "titanic.client": ("Client", "Outcome", "Ticket"),
            "titanic.journal.disk": ("HeldDisk", "RealDisk"),
            "titanic.journal.group_commit": ("Journal", "JournalOptions"),
            "titanic.journal.segment_log": ("LogOptions",),
            "titanic.mirror.replica_link": ("MirrorLine",),
            "titanic.mirror.replica_server": ("Mirror",),
            "titanic.paired_store": ("PairedOptions", "PairedTitanic"),
            "titanic.store.index.limits": ("DispatchOptions", "Limits"),
            "titanic.store.service": ("Service", "ServiceOptions"),
            "titanic.store.store": ("Store",),
            "titanic.sync": ("SyncClient", "SyncOutcome", "SyncTicket"),
        },
    )


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
