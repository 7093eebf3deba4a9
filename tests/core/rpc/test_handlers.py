"""core.rpc.handlers: functions named on a command line; what is not there is named, wherever the name came from."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from core.rpc.handlers import HandlerNotFound, echo, handler_option, import_handler

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scenes.programs import Programs

PIRATE_FILE = '[worker]\nqueue = ["ipc://q"]\nhandler = "shop:sell"\n'


def test_a_function_of_the_working_directory_is_found_by_its_name(workplace: Path) -> None:
    (workplace / "counter_handlers.py").write_text(
        "class Counter:\n    @staticmethod\n    def count(body):\n        return [b'%d' % len(body)]\n"
    )
    assert import_handler("counter_handlers:Counter.count")([b"a", b"b"]) == [b"2"]
    assert sys.path.count(str(workplace)) == 1
    assert echo([b"a", b""]) == [b"a", b""]


@pytest.mark.parametrize(
    "name", ["", "json", ":dumps", "json:", "json:none", "json:dumps.none", "json:__doc__", "no_such_module:f", ".json:dumps"]
)
def test_what_is_not_there_is_named(workplace: Path, name: str) -> None:
    with pytest.raises(HandlerNotFound) as caught:
        import_handler(name)
    assert caught.value.name == name
    assert caught.value.reason
    assert (caught.value.reason == "is not package.module:function") is (name in ("", "json", ":dumps", "json:"))


def test_a_module_that_is_not_there_is_named_with_where_it_was_looked_for(workplace: Path) -> None:
    with pytest.raises(HandlerNotFound, match=f"no module no_such_module; looked in {workplace}"):
        import_handler("no_such_module:f")
    assert sys.path[0] == str(workplace), "as `python -m` has it"


def test_a_command_gets_the_function_of_its_option_or_none(workplace: Path) -> None:
    (workplace / "shop_handlers.py").write_text("def sell(body):\n    return body\n")
    got: list[object] = []

    @click.command()
    @handler_option("What to call.")
    def command(handler: object) -> None:
        got.append(handler)

    runner = CliRunner()
    assert runner.invoke(command, []).exit_code == 0
    assert runner.invoke(command, ["--handler", "shop_handlers:sell"]).exit_code == 0
    assert got[0] is None
    assert getattr(got[1], "__name__", "") == "sell"
    failed = runner.invoke(command, ["--handler", "shop_handlers:buy"])
    assert failed.exit_code == 2
    assert "Invalid value for '--handler': shop_handlers:buy: shop_handlers has no buy" in failed.output
    assert "What to call.  [default: echo]" in " ".join(runner.invoke(command, ["--help"]).output.split()).replace(" [", "  [")


def test_what_a_module_lacks_itself_is_not_hidden(workplace: Path) -> None:
    (workplace / "lacking_handlers.py").write_text("import no_such_thing\n")
    with pytest.raises(ModuleNotFoundError, match="no_such_thing"):
        import_handler("lacking_handlers:function")


@pytest.mark.parametrize(
    "daemon",
    [
        ("pirate", "worker"),
        ("freelance", "serve", "--bind", "ipc://a"),
        ("bstar", "run", "--primary", "--local", "ipc://a", "--remote", "ipc://b", "--frontend", "ipc://c"),
    ],
    ids=lambda words: words[0],
)
def test_x1_every_daemon_says_which_handler_is_missing(programs: Programs, daemon: tuple[str, ...]) -> None:
    ended = programs.run(*daemon, "--handler", "nowhere:at_all")
    assert ended.code == 2
    assert "Invalid value for '--handler': nowhere:at_all: no module nowhere" in ended.err


def test_x1_of_a_file_the_line_is_named_too(programs: Programs) -> None:
    (programs.folder / "pirate.toml").write_text(PIRATE_FILE)
    ended = programs.run("pirate", "worker", "--config", "pirate.toml")
    assert ended.code == 78
    assert ended.complaint.startswith("pirate: pirate.toml:3: handler: shop:sell: no module shop; looked in ")
    ended = programs.run("pirate", "worker", PIRATE_WORKER_HANDLER="json:none")
    assert (ended.code, ended.complaint.startswith("pirate: PIRATE_WORKER_HANDLER in the environment: json:none:")) == (78, True)


def test_values_are_shown_without_an_import(programs: Programs) -> None:
    (programs.folder / "pirate.toml").write_text(PIRATE_FILE)
    ended = programs.run("pirate", "worker", "--config", "pirate.toml", "--show-config")
    assert ended.code == 0
    assert 'handler = "shop:sell"  # file pirate.toml:3' in ended.lines
