"""Options of all commands with a broker."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

import core
import mdp
from core.daemon.exit_codes import Unreachable
from mdp.commands.client_options import ask
from mdp.commands.main import main
from titanic.commands.main import main as titanic_main

if TYPE_CHECKING:
    from pathlib import Path

    import click


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)


def shown(*arguments: str) -> list[str]:
    """Return the values that a call would have, without where they come from."""
    result = CliRunner().invoke(main, ["call", *arguments, "--show-config", "echo"])
    assert result.exit_code == 0, result.output
    return [line.partition("  # ")[0] for line in result.output.splitlines()]


@pytest.mark.parametrize("headers", [[], ["tenant=zh", "text=a=b"]])
def test_headers_are_shown_as_a_file_takes_them(headers: list[str], tmp_path: Path) -> None:
    values = shown(*(f"--header={header}" for header in headers))
    assert f"header = {json.dumps(headers)}" in values
    file = tmp_path / "mdp.toml"
    file.write_text("\n".join(values), encoding="utf-8")
    assert shown("--config", str(file)) == values


def test_what_is_no_header_is_said_before_anything_is_sent() -> None:
    result = CliRunner().invoke(main, ["call", "--header", "tenant", "echo"], standalone_mode=False)
    assert "a header is NAME=TEXT" in str(result.exception)


@pytest.mark.parametrize(
    ("after_s", "text", "line"),
    [
        (0.1004, "", "no broker reached within 0.1 s in 2 attempts; start one, or correct --broker"),
        (0.1501, "ipc://b (refused)", "no broker reached within 0.2 s in 2 attempts: ipc://b (refused); start one, or correct --broker"),
        (7.5, "", "no broker reached within 7.5 s in 2 attempts; start one, or correct --broker"),
    ],
)
def test_time_after_which_no_broker_was_reached_is_that_of_the_error(after_s: float, text: str, line: str) -> None:
    async def talk(_: mdp.Client) -> None:
        raise mdp.Unreachable("echo", attempts=2, after_s=after_s, text=text)

    with pytest.raises(Unreachable) as caught:
        ask(talk, ["inproc://nowhere"], uvloop=False)
    assert str(caught.value) == line


@pytest.mark.parametrize(
    ("command", "arguments"),
    [(main, ("mmi", "--attempts", "1", "--timeout", "1", "service", "echo")), (titanic_main, ("fetch", "--timeout", "0.4", "0" * 32))],
)
async def test_options_to_correct_are_those_that_keep_a_command_from_its_broker(
    command: click.Command, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    """A broker with keys refuses a command without any, and one with a key that it does not know.

    It cannot tell a command with the key of another server.
    """
    (server_public, server), (_, secret), (other_public, _) = (core.curve_keypair() for _ in range(3))
    keys = tmp_path / "secret"
    keys.write_bytes(secret)
    keys.chmod(0o600)
    own = ("--curve-secret", str(keys), "--curve-server-key")

    async def complaint(*options: str) -> str:
        ended = await asyncio.to_thread(CliRunner().invoke, command, [*arguments, *options], standalone_mode=False)
        return str(ended.exception).rpartition("; ")[2]

    security = core.Curve(secret_key=server, keys={other_public: "other"})
    async with core.Context(security=security) as context, mdp.Broker(context=context) as broker:
        here = broker.bind("tcp://127.0.0.1:*")
        assert await complaint("--broker", here) == "correct the --curve-* or --plain-* options"
        assert await complaint("--broker", here, *own, server_public.decode()) == "correct the --curve-* or --plain-* options"
        wrong = await complaint("--broker", here, *own, other_public.decode())
        assert wrong == "start one, or correct --broker or the --curve-* and --plain-* options"
    assert await complaint("--broker", here) == "start one, or correct --broker"
