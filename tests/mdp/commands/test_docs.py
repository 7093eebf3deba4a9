"""docs/cli.md: every flag is in its table, and every example prints the documented output.

The page is run as one shell session in an empty folder. `mdp` and `zmtp` are this checkout's; the default broker's endpoint is a
socket in that folder, so that no port of the machine is needed. `…` in expected output stands for anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest

import core.cli
import mdp.commands.main
from tests.scenes.docs_page import COMMON, Page, flag_table

if TYPE_CHECKING:
    from pathlib import Path

page = Page("cli.md")
PROGRAMS = {"mdp": mdp.commands.main.main, "zmtp": core.cli.main}
COMMANDS = {
    (program, name): command
    for program, group in PROGRAMS.items()
    for name in group.list_commands(click.Context(group))
    if not ((lazy := group.lazy.get(name)) and lazy.extra)  # those of an extra have pages of their own
    and (command := group.get_command(click.Context(group), name))
}


@pytest.mark.parametrize("program,name", COMMANDS)
def test_each_command_has_its_flags_in_a_table(program: str, name: str) -> None:
    expected = flag_table(f"{program} {name}", COMMANDS[program, name]) + "\n"
    assert expected in page.text, f"docs/cli.md should say:\n\n{expected}"


def test_common_flags_are_in_their_table() -> None:
    for name in COMMON:
        assert f"| `--{name.replace('_', '-').removesuffix('-keys') + '-key' * name.endswith('_keys')}`" in page.text


@pytest.mark.timeout(240)  # many processes, on a machine that may be busy
def test_the_examples_print_what_the_page_says(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(page.blocks("python")[0])
    (tmp_path / "mdp.toml").write_text(page.blocks("toml")[0])
    broker = "ipc://default.sock"
    # A call for a service without workers is answered when the broker has run for 7.5 s: not before three attempts end, if it pauses.
    environment = {"MDP_BIND": broker, "MDP_BROKER": broker, "MDP_ATTEMPTS": "20"}
    page.run(tmp_path, "mdp", "zmtp", environment=environment, instead={"tcp://127.0.0.1:5555": broker})
