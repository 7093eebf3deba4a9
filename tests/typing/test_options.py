"""Type checkers find a mistaken option wherever users can give one, and know the same options as the programs."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import freelance
import mdp
import titanic
from freelance.client import ClientSettings as FreelanceSettings
from mdp.broker.limits import BrokerArguments, BrokerSettings
from mdp.client.calls import CallDefaults, CallOptions, MapOptions
from mdp.client.client import ClientSettings
from mdp.worker.handler import ServingSettings, WorkerSettings
from peering.task_router import RouterLimits, RouterSettings
from titanic.client import StoreConnectionSettings, TitanicSettings

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# A program with seeded mistakes, which is read and never run: each line that ends in `# typo` must be an error, and no other one.
PROGRAM = (HERE / "program.txt").read_text(encoding="utf-8")


@pytest.mark.long
@pytest.mark.timeout(600)
def test_each_seeded_mistake_is_found_and_nothing_else(tmp_path: Path) -> None:
    program = tmp_path / "program.py"  # outside of the tree, as a user's
    program.write_text(PROGRAM, encoding="utf-8")
    options = ("--config-file=", "--strict", "--ignore-missing-imports", "--explicit-package-bases", "--cache-dir", str(tmp_path / "cache"))
    command = (sys.executable, "-m", "mypy", *options, str(program))
    done = subprocess.run(command, cwd=tmp_path, env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    errors = re.findall(r"program\.py:(\d+): error: ", done.stdout)
    lines = PROGRAM.splitlines()
    seeded = {number for number, line in enumerate(lines, 1) if line.endswith("# typo")}
    assert len(seeded) > 40
    found = {int(number) for number in errors}
    differing = "\n".join(f"{number}: {lines[number - 1].strip()}" for number in sorted(found ^ seeded))
    assert found == seeded, f"{differing}\n\n{done.stdout}{done.stderr}"


def known(settings: Any) -> dict[str, str]:
    """Return the entries of a TypedDict with the texts of their annotations."""
    return {name: getattr(hint, "__forward_arg__", hint) for name, hint in settings.__annotations__.items()}


def keywords(function: Any) -> dict[str, str]:
    """Return the keyword parameters of a function with the texts of their annotations."""
    parameters = inspect.signature(function).parameters.values()
    return {one.name: one.annotation for one in parameters if one.kind is one.KEYWORD_ONLY}


@pytest.mark.parametrize(
    ("settings", "program"),
    [
        (WorkerSettings, {one.name: one.type for one in fields(mdp.WorkerOptions)}),
        (RouterSettings, {one.name: one.type for one in fields(RouterLimits)}),
        (BrokerSettings, {one.name: one.type for one in fields(mdp.BrokerOptions)}),
        (ClientSettings, keywords(mdp.Client.__init__)),
        (FreelanceSettings, keywords(freelance.Client.__init__)),
        (CallOptions, known(MapOptions) | {"key": "str | bytes | None", "progress": "Callable[[Progress], object] | None"}),
        (BrokerArguments, known(BrokerSettings) | keywords(mdp.Broker.__init__)),
        (TitanicSettings, known(StoreConnectionSettings) | keywords(titanic.Client.__init__)),
    ],
)
def test_they_know_every_option_of_the_program_and_its_type(settings: Any, program: dict[str, str]) -> None:
    assert known(settings) == program


def test_further_options_are_those_of_the_program() -> None:
    assert {one.name for one in fields(CallDefaults)} == set(known(CallOptions))
    assert set(known(ServingSettings)) - set(known(WorkerSettings)) < set(keywords(mdp.Worker.__init__))
    assert set(known(StoreConnectionSettings)) == set(known(ClientSettings)) - {"timeout", "attempts"}
