"""core.errors: libzmq's numbers, one class per number, and whose fault it is."""

from __future__ import annotations

import copy

import pytest
import zmq

from core import errors
from core.constants import ProtocolErrorCode

ERRNO_NAMES = [name for name in errors.__all__ if name.startswith("E") and name.isupper()]


@pytest.mark.parametrize("name", [name for name in ERRNO_NAMES if hasattr(zmq, name)])
def test_errno_has_libzmqs_value(name: str) -> None:
    assert getattr(errors, name) == getattr(zmq, name)


def test_every_errno_of_libzmq_is_known() -> None:
    assert {name for name in zmq.Errno.__members__ if not hasattr(errors, name)} == set()


def test_own_numbers_start_at_the_fixed_base() -> None:
    assert errors.HAUSNUMERO == 156384712
    assert errors.EFSM - errors.HAUSNUMERO == 51


@pytest.mark.parametrize(
    "errno,kind",
    [
        (errors.EAGAIN, errors.Again),
        (errors.ETERM, errors.ContextTerminated),
        (errors.ENOTSOCK, errors.SocketClosed),
        (errors.EFSM, errors.BadState),
        (errors.ENOTSUP, errors.OperationNotSupported),
        (errors.EHOSTUNREACH, errors.HostUnreachable),
        (errors.ENOENT, errors.EndpointNotFound),
        (errors.EADDRINUSE, errors.AddressInUse),
        (errors.EINVAL, errors.ZMQError),
    ],
)
def test_the_number_picks_the_class(errno: int, kind: type[errors.ZMQError]) -> None:
    error = errors.ZMQError(errno, "because")
    assert type(error) is kind
    assert (error.errno, error.strerror, str(error)) == (errno, "because", "because")
    twin = copy.copy(error)
    assert (type(twin), twin.errno, twin.strerror) == (kind, errno, "because")


@pytest.mark.parametrize("name", ["Again", "ContextTerminated", "ZMQError"])
def test_shape_is_that_of_the_binding_programs_know(name: str) -> None:
    ours, theirs = getattr(errors, name), getattr(zmq, name)
    arguments = (errors.EINVAL,) if name == "ZMQError" else ()
    assert ours(*arguments).errno == theirs(*arguments).errno
    assert issubclass(ours, errors.ZMQBaseError)
    assert issubclass(theirs, zmq.ZMQBaseError)


def test_standard_text_belongs_to_the_number() -> None:
    assert str(errors.Again()) == zmq.strerror(errors.EAGAIN)
    assert "wrong state" in str(errors.BadState())
    assert errors.ZMQError("only words").errno is None


def test_a_text_first_keeps_the_number_of_the_class() -> None:
    error = errors.OperationNotSupported("no recv on PUB")
    assert (error.errno, error.strerror) == (errors.ENOTSUP, "no recv on PUB")


def test_fields_hold_what_the_text_is_about() -> None:
    assert errors.InvalidEndpoint(errors.ENODEV, "x", endpoint="tcp://x:1").endpoint == "tcp://x:1"
    assert errors.InvalidOption("x", option="linger").option == "linger"
    assert errors.HostUnreachable(routing_id=b"\x00abcd").routing_id == b"\x00abcd"
    assert "b'\\x00abcd'" in str(errors.HostUnreachable(routing_id=b"\x00abcd"))
    assert len(str(errors.HostUnreachable(routing_id=bytes(1_000_000)))) < 1100
    assert issubclass(errors.ZMQBindError, errors.AddressInUse)


def test_protocol_error_is_abstract() -> None:
    with pytest.raises(TypeError):
        errors.ProtocolError("who?")


@pytest.mark.parametrize(
    "error,code",
    [
        (errors.RemoteProtocolError("x"), ProtocolErrorCode.ZMTP_UNSPECIFIED),
        (errors.HandshakeError("x", code=ProtocolErrorCode.ZMTP_INVALID_METADATA, offset=7), 0x10000018),
        (errors.MechanismMismatch("x"), 0x11000002),
        (errors.AuthenticationRefused(b"400"), ProtocolErrorCode.ZMTP_UNSPECIFIED),
    ],
)
def test_remote_errors_carry_a_monitor_code(error: errors.RemoteProtocolError, code: int) -> None:
    """MON-04."""
    assert error.code == code
    assert not isinstance(error, errors.LocalProtocolError)


def test_authentication_refused_survives_any_status_octets() -> None:
    error = errors.AuthenticationRefused(b"4\xff0")
    assert error.status == b"4\xff0"
    assert error.reason == "authentication refused with status 4\\xff0"
    assert error.offset is None
