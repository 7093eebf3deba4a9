"""What stops a server for good (BST-06), as the exception that says how to mend it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bstar import errors
from bstar.machine.fsm import Fault

if TYPE_CHECKING:
    from bstar.errors import PairFault

__all__ = ["fault_error"]

_FAULTS: Final[dict[Fault, type[PairFault]]] = {
    Fault.DUAL_ACTIVE: errors.DualActive,
    Fault.DUAL_PASSIVE: errors.DualPassive,
}
_MENDS: Final = {
    Fault.DOUBLE_PRIMARY: "both servers are configured as primary: start one of them as backup",
    Fault.DOUBLE_BACKUP: "both servers are configured as backup: start one of them as primary",
    Fault.SAME_NODE: "the peer has our node id: remote is our own address, or the ballot file was copied from the other server",
}


def fault_error(fault: Fault) -> PairFault:
    """Return what to raise for a fault."""
    return _FAULTS[fault]() if fault in _FAULTS else errors.Misconfigured(_MENDS[fault])
