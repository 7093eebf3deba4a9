"""core.daemon.option_fields: a dataclass says what the command line takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

from core.daemon.option_fields import attribute_texts, field_options, given

if TYPE_CHECKING:
    from collections.abc import Sequence

    from click.testing import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Kitchen:
    """Options of a cook.

    Attributes:
        oven_ms: how long the oven is on, on
            two lines (fault B7); longer than `pots`.
        pots: on the stove (MDP-37).
        gas: whether it burns gas.
        mode: of cooking.
        rest_s: seconds of rest, None for none.
        recipe: only a program can give it.
    """

    oven_ms: float = 2500
    pots: int = 3
    gas: bool = False
    mode: str = "auto"
    rest_s: float | None = None
    recipe: object = None


@click.command()
@field_options(Kitchen, skip=("recipe",), zero=("pots",), choices={"mode": ["auto", "slow"]})
@click.pass_context
def cook(context: click.Context, /, **values: Any) -> None:
    click.echo(f"{sorted(values.items())} {given(context, Kitchen)}")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cook, list(arguments))


def test_defaults_are_the_fields() -> None:
    expected = [("gas", False), ("mode", "auto"), ("oven_ms", 2500.0), ("pots", 3), ("rest_s", None)]
    assert run().output == f"{expected} {{}}\n"


@dataclass(frozen=True)
class Oven:
    """Options of an oven.

    Attributes:
        name: of the oven.  [default: its number]
        racks: rack to use; repeatable.
        fan: use the fan.
    """

    name: str
    racks: Sequence[str] = ("middle",)
    fan: bool = False


@click.command()
@field_options(Oven, name={"flag": "--called", "type": click.Choice(["big", "small"])}, racks={"flag": "--rack"}, fan={"flag": "--fan"})
def bake(**values: Any) -> None:
    click.echo(Oven(**values))


def test_a_field_may_have_another_flag_and_other_arguments() -> None:
    baked = CliRunner().invoke(bake, ["--called", "big", "--rack", "low", "--rack", "high", "--fan"])
    assert baked.output == "Oven(name='big', racks=('low', 'high'), fan=True)\n"
    assert CliRunner().invoke(bake, ["--called", "big"]).output == "Oven(name='big', racks=('middle',), fan=False)\n"
    assert "Of the oven.  [default: its number]" in CliRunner().invoke(bake, ["--help"]).output


def test_a_field_without_default_must_be_given() -> None:
    assert "Missing option '--called'" in CliRunner().invoke(bake, []).output
    assert CliRunner().invoke(bake, ["--called", "big", "--no-fan"]).exit_code == 2


def test_given_are_those_somebody_chose() -> None:
    result = run("--oven-ms", "2500", "--gas", "--mode", "slow", "--rest-s", "0.5")
    assert result.output.endswith("{'oven_ms': 2500.0, 'gas': True, 'mode': 'slow', 'rest_s': 0.5}\n")


@pytest.mark.parametrize(
    "arguments", [["--oven-ms", "0"], ["--oven-ms", "x"], ["--pots", "-1"], ["--pots", "1.5"], ["--mode", "fast"], ["--recipe", "x"]]
)
def test_ranges_and_types_are_kept(arguments: list[str]) -> None:
    assert run(*arguments).exit_code == 2
    assert run("--pots", "0").exit_code == 0


def test_help_is_the_docstring_without_rule_ids_in_terms_of_flags() -> None:
    texts = attribute_texts(Kitchen)
    assert texts["oven_ms"] == "How long the oven is on, on two lines; longer than --pots."
    assert texts["pots"] == "On the stove."
    assert texts["recipe"] == "Only a program can give it."
    assert "How long the oven is on" in run("--help").output


def test_a_class_without_a_docstring_has_no_texts() -> None:
    assert attribute_texts(type("Bare", (), {})) == {}
