"""Files of daemons belong to their user alone, and no daemon takes an endpoint that another one serves."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pytest

import core
import mdp
import titanic
from core.daemon.exit_codes import Unreachable
from mdp.eventlog.files import EventLogWriter

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scenes.programs import Programs


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_a_store_can_be_read_by_its_user_alone(tmp_path: Path) -> None:
    place = tmp_path / "store"
    async with titanic.Store(titanic.RealDisk(place), titanic.JournalOptions()):
        assert mode(place) == 0o700
        assert {mode(file) for file in place.iterdir()} == {0o600}


def test_an_event_log_can_be_read_by_its_user_and_by_a_group_that_is_let_in(tmp_path: Path) -> None:
    with EventLogWriter(tmp_path / "events"):
        pass
    assert mode(tmp_path / "events") == 0o700
    assert {mode(file) & 0o037 for file in (tmp_path / "events").iterdir()} == {0}
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o750)
    with EventLogWriter(shared):
        pass
    assert mode(shared) == 0o750


async def test_a_second_broker_does_not_take_an_ipc_path_that_is_served(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path / 'b'}"
    async with mdp.Broker() as first:
        first.bind(endpoint)
        async with mdp.Broker() as second:
            with pytest.raises(core.AddressInUse):
                second.bind(endpoint)
        async with mdp.Worker(endpoint, "echo", handler=lambda request: request.body), mdp.Client(endpoint) as client:
            assert await client.request("echo", b"hello", wait=True) == [b"hello"]


def test_the_command_says_so_and_ends_with_69(programs: Programs, tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path / 'b'}"
    programs.start("mdp", "broker", "--bind", endpoint).said("broker serves")
    refused = programs.run("mdp", "broker", "--bind", endpoint)
    assert refused.code == Unreachable.exit_code
    assert "another process listens on it" in refused.complaint
