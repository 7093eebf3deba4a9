"""Brokers, workers and clients inside a test, virtual time, and a pytest plugin.

    async with mdp.testing.broker(double) as local:                         # handlers decorated with `mdp.service`, apps, modules
        assert await local.client.request("double", b"x") == [b"x", b"x"]

    mdp.testing.run(main())                                                 # an hour of time-outs takes milliseconds

    pytest_plugins = "mdp.testing"                                          # in conftest.py: fixtures, see `mdp.testing.plugin`

It needs no pytest, no free port and no waiting: the broker is reached over `inproc` in its own context, so tests in one process are
independent.
"""

from __future__ import annotations

from typing import Final

from mdp.testing.local_broker import Local, broker
from mdp.testing.virtual_time import VirtualLoop, VirtualTimeout, run

__all__ = ["Local", "VirtualLoop", "VirtualTimeout", "broker", "run"]

# What pytest loads with this module, when a program's own tests name it.
pytest_plugins: Final = ["mdp.testing.plugin"]
