"""core.utils: helpers answer as those of ZeroMQ's Python binding."""

from __future__ import annotations

from typing import Any

import pytest
import zmq.utils.jsonapi
import zmq.utils.strtypes
import zmq.utils.z85

import core
import core.error
import core.utils.monitor
from core import monitor
from core.utils import jsonapi, strtypes, z85


@pytest.mark.parametrize("value", [None, [1, 2.5], {"ü": "x"}])
def test_json(value: Any) -> None:
    assert jsonapi.dumps(value) == zmq.utils.jsonapi.dumps(value)
    assert jsonapi.loads(jsonapi.dumps(value)) == jsonapi.loads(jsonapi.dumps(value).decode()) == value
    with pytest.raises(ValueError, match="Expecting"):
        jsonapi.loads(b"{")


def test_keys_as_text() -> None:
    octets = bytes(range(32))
    assert z85.encode(octets) == zmq.utils.z85.encode(octets)
    assert z85.decode(z85.encode(octets)) == octets


@pytest.mark.parametrize("value", ["grüße", b"x", 5])
def test_text_and_bytes(value: Any) -> None:
    for ours, theirs in ((strtypes.cast_bytes, zmq.utils.strtypes.cast_bytes), (strtypes.cast_unicode, zmq.utils.strtypes.cast_unicode)):
        if isinstance(value, int):
            with pytest.raises(TypeError):
                ours(value)  # type: ignore[arg-type]
        else:
            with pytest.warns(DeprecationWarning, match="strtypes"):
                expected = theirs(value)
            assert ours(value) == expected


def test_errors_are_those_of_the_package() -> None:
    assert all(getattr(core.error, name) is getattr(core, name) for name in core.error.__all__)
    assert core.utils.monitor.recv_monitor_message is monitor.recv_monitor_message
