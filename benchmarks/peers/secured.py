"""CURVE for pyzmq's programs, if the harness asks for it: defaults of a context, inherited by its sockets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import zmq

from benchmarks.keys import CLIENT_PUBLIC, CLIENT_SECRET, SERVER_PUBLIC, SERVER_SECRET

if TYPE_CHECKING:
    from benchmarks.program import Options

__all__ = ["as_client", "as_server"]

C = TypeVar("C", bound="zmq.Context[Any]")


def as_server(context: C, options: Options) -> C:
    """Make the sockets of a context CURVE servers for clients that know their key."""
    if options.curve:
        context.setsockopt(zmq.CURVE_SERVER, 1)
        context.setsockopt(zmq.CURVE_SECRETKEY, SERVER_SECRET)
    return context


def as_client(context: C, options: Options) -> C:
    """Make the sockets of a context CURVE clients."""
    if options.curve:
        context.setsockopt(zmq.CURVE_SERVERKEY, SERVER_PUBLIC)
        context.setsockopt(zmq.CURVE_PUBLICKEY, CLIENT_PUBLIC)
        context.setsockopt(zmq.CURVE_SECRETKEY, CLIENT_SECRET)
    return context
