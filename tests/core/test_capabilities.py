"""core.capabilities: what can be asked for answers as libzmq's binding does, or says no."""

from __future__ import annotations

import pytest
import zmq

import core


@pytest.mark.parametrize("capability", ["ipc", "curve"])
def test_what_both_have(capability: str) -> None:
    assert core.has(capability) is zmq.has(capability) is True


@pytest.mark.parametrize("capability", ["draft", "pgm", "norm", "tipc", "gssapi", "Curve", ""])
def test_what_is_not_built_is_said(capability: str) -> None:
    assert core.has(capability) is False


def test_the_version_is_one_whose_numbers_can_be_compared() -> None:
    assert core.zmq_version_info() >= (4, 3, 0)
    assert type(zmq.zmq_version_info()) is type(core.zmq_version_info())
    assert core.zmq_version() == "{}.{}.{}".format(*core.zmq_version_info())
