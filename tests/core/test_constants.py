"""core.constants: every name has the value of libzmq's binding."""

from __future__ import annotations

import enum

import pytest
import zmq

from core import constants

NAMES = [name for name in constants.__all__ if not isinstance(getattr(constants, name), enum.EnumMeta)]
ENUMS = [name for name in constants.__all__ if isinstance(getattr(constants, name), enum.EnumMeta)]


@pytest.mark.parametrize("name", NAMES)
def test_value_is_libzmqs(name: str) -> None:
    assert int(getattr(constants, name)) == int(getattr(zmq, name))


@pytest.mark.parametrize("name", [name for name in ENUMS if hasattr(zmq, name)])
def test_members_are_those_of_the_enum_programs_know(name: str) -> None:
    ours, theirs = getattr(constants, name), getattr(zmq, name)
    assert {key: int(member) for key, member in ours.__members__.items() if key in theirs.__members__} == {
        key: int(theirs[key]) for key in ours.__members__ if key in theirs.__members__
    }


def test_every_stable_socket_option_number_is_accounted_for() -> None:
    """Constants of libzmq's stable API that are left out are named, so that a new one is noticed."""
    left_out = {
        *("AFFINITY", "RATE", "RECOVERY_IVL", "MULTICAST_HOPS", "MULTICAST_MAXTPDU"),  # threads and multicast: none here
        *("ROUTER_RAW", "STREAM_NOTIFY"),  # of STREAM, which always tells of connections
        *("USE_FD", "BLOCKY"),
        *(name for name in zmq.SocketOption.__members__ if name.startswith(("GSSAPI_", "VMCI_", "NORM_", "WSS_", "IPC_FILTER_"))),
        *("TCP_ACCEPT_FILTER", "IPV4ONLY"),  # removed from libzmq's own headers
    }
    first_draft = zmq.ZAP_ENFORCE_DOMAIN + 1
    stable = {name for name, member in zmq.SocketOption.__members__.items() if member < first_draft}
    later = {"HELLO_MSG", "METADATA", "RECONNECT_STOP", "SOCKS_PASSWORD", "SOCKS_USERNAME"}  # a draft's numbers, but built here
    assert (stable - left_out) | later == set(constants.SocketOption.__members__)


def test_protocol_error_codes_are_events_values() -> None:
    """MON-04: the binding keeps them among its events, we in an enum of their own."""
    for code in constants.ProtocolErrorCode:
        assert int(code) == int(getattr(zmq, f"PROTOCOL_ERROR_{code.name}"))
