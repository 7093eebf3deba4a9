"""The public names of the package."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import get_origin

import pytest

import mdp


@pytest.mark.parametrize("name", mdp.__all__)
def test_every_public_name_is_there(name: str) -> None:
    found = getattr(mdp, name)
    assert isinstance(found, str) or get_origin(found) is Callable or found.__name__ == name
    assert name in dir(mdp)


def test_no_other_name_is_made_up() -> None:
    with pytest.raises(AttributeError, match="Brokre"):
        mdp.Brokre  # type: ignore[attr-defined]  # noqa: B018  # looking it up is the test


def test_what_is_not_used_is_not_loaded() -> None:
    """A worker process does not pay for broker, client and command line."""
    program = "import sys, mdp; mdp.RequestError; print([m for m in sys.modules if m in ('asyncio', 'core', 'mdp.broker', 'mdp.client')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
