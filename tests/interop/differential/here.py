"""A hundred of the programmes in this process, where changed code is what runs.

For `make mutants` only, which names this file.

`test_differential.py` runs each chunk in a process of its own, because an assertion of libzmq ends the process it is in. These seeds bring
none about.
"""

from __future__ import annotations

import asyncio
import logging

import pytest

import core
from tests.interop.differential.differences import explain
from tests.interop.differential.generate import programme_of
from tests.interop.differential.libzmq import Libzmq
from tests.interop.differential.lockstep import run

CHUNK = 10


async def unexplained(seeds: range) -> list[str]:
    """Difference that is no row of the table."""
    library = Libzmq()
    found = []
    try:
        async with core.Context() as context:
            for seed in seeds:
                one = await run(programme_of(seed), library, context, explain)
                if one is not None and explain(one) is None:
                    found.append(str(one))
    finally:
        library.close()
    return found


@pytest.mark.parametrize("first", range(0, 100, CHUNK))
def test_what_differs_from_libzmq_is_in_the_table(first: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)  # peers that break rules are what some programmes are about
    assert not asyncio.run(unexplained(range(first, first + CHUNK)))
