"""Numbers on the command line that no calculation can use are refused, in every command of every program."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

from core.machine.value_copies import NUMBER_MAX
from tests.test_help import EVERY, program, run

if TYPE_CHECKING:
    from pathlib import Path


def command_at(path: tuple[str, ...]) -> click.Command:
    found: click.Command = program(path[0])
    for name in path[1:]:
        assert isinstance(found, click.Group)
        next_one = found.get_command(click.Context(found, info_name=name), name)
        assert next_one is not None
        found = next_one
    return found


@pytest.mark.parametrize("path", EVERY, ids=" ".join)
def test_a_number_that_is_too_large_is_refused_by_its_option(path: tuple[str, ...]) -> None:
    """Options took it, and the command ended with a traceback of what they are for, or waited for ever."""
    ranges = [param for param in command_at(path).params if isinstance(param.type, click.IntRange | click.FloatRange)]
    for param in ranges:
        most = getattr(param.type, "max", None) or NUMBER_MAX
        for text in (str(int(max(most, NUMBER_MAX)) + 2), "1" + "0" * 300):
            with pytest.raises(click.BadParameter):
                param.type.convert(text, param, None)


def test_the_largest_number_is_taken() -> None:
    said = run(("mdp", "bench"), "--requests", str(NUMBER_MAX), "--timeout", str(NUMBER_MAX), "--show-config")
    assert said.exit_code == 0
    assert f"requests = {NUMBER_MAX}  # flag --requests" in said.output


def test_a_number_that_is_too_large_is_named_with_its_place(tmp_path: Path) -> None:
    flag = run(("bstar", "call"), "--primary", "ipc://p", "--backup", "ipc://b", "--timeout", "1e300", "x")
    assert flag.exit_code == 2
    assert "Invalid value for '--timeout': 1e300 is too large, above 2**53." in flag.output
    file = tmp_path / "wrong.toml"
    file.write_text("[broker]\nheartbeat_ms = 1e300\n", encoding="utf-8")
    found = run(("mdp", "broker"), "--config", str(file))
    assert found.exit_code == 78
    assert f"{file}:2: heartbeat_ms: 1e+300 is too large, above 2**53; write a fitting value or remove the line" in found.output
