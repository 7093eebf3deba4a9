"""freelance.names.cli: a pool of name servers in separate processes, and the output of clients."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.scenes.programs import Ended, Programs

SERVERS = ("--server", "ipc://a", "--server", "ipc://b", "--timeout", "20")


@pytest.fixture
def programs(programs: Programs) -> Programs:
    (programs.folder / "names.toml").write_text('[production.bank]\nbind = ["tcp://*:1"]\nconnect = ["tcp://bank:1"]\n[test.bank]\n')
    return programs


def serve(programs: Programs, bind: str, *more: str) -> None:
    programs.start("freelance", "names", "serve", "--bind", bind, "--sync-s", "0.1", *more).said("name server runs")


def names(programs: Programs, verb: str, *arguments: str, **env: str) -> Ended:
    return programs.run("freelance", "names", verb, *SERVERS, *arguments, given=None, **env)


def test_set_get_drop_by_any_server_of_the_pool(programs: Programs) -> None:
    serve(programs, "ipc://a", "--peer", "ipc://b", "--file", "names.toml")
    serve(programs, "ipc://b", "--peer", "ipc://a")
    assert names(programs, "get", "--json", "bank", "--server", "ipc://b").lines == [
        '{"name": "bank", "bind": ["tcp://*:1"], "connect": ["tcp://bank:1"], "ttl_s": null}'
    ]
    assert names(programs, "set", "shop", "--connect", "tcp://a:1", "--connect", "tcp://b:1", "--bind", "tcp://*:1").code == 0
    assert names(programs, "get").lines == ["bank", "shop"]
    assert names(programs, "get", "--environment", "test", "--json").lines == ['{"names": []}']
    assert names(programs, "drop", "shop", "--connect", "tcp://a:1").code == 0
    assert names(programs, "get", "shop").lines == ["bind tcp://*:1", "connect tcp://b:1"]
    ended = names(programs, "drop", "shop", "--connect", "tcp://a:1")
    assert (ended.code, ended.complaint) == (1, "freelance: shop has no such endpoint in production")


def test_watch_prints_each_listing(programs: Programs) -> None:
    serve(programs, "ipc://a", "--file", "names.toml")
    watching = programs.start("freelance", "names", "watch", *SERVERS, "--count", "2", "bank")
    assert watching.process.stdout is not None
    first = [watching.process.stdout.readline().decode() for _ in range(3)]
    assert first == ["bind tcp://*:1\n", "connect tcp://bank:1\n", "\n"]
    assert names(programs, "set", "bank", "--connect", "tcp://bank:2", "--ttl", "60").code == 0
    assert watching.end().lines == ["bind tcp://*:1", "connect tcp://bank:1", "connect tcp://bank:2", ""]
    once = names(programs, "watch", "--count", "1", "--json", "bank")
    assert json.loads(once.out)["connect"] == ["tcp://bank:1", "tcp://bank:2"]


def test_environment_variables_have_names_of_their_own(programs: Programs) -> None:
    serve(programs, "ipc://a", "--file", "names.toml")
    ended = names(programs, "get", FREELANCE_GET_ENVIRONMENT="nowhere", FREELANCE_NAMES_ENVIRONMENT="production")
    assert ended.lines == ["bank"]
    shown = names(programs, "get", "--show-config", FREELANCE_NAMES_GET_ENVIRONMENT="test")
    assert 'environment = "test"  # environment FREELANCE_NAMES_GET_ENVIRONMENT' in shown.lines


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (("get", "--server", "ipc://nobody", "--timeout", "0.1", "shop"), 69, "no server answered"),
        (("get", *SERVERS, "shop"), 1, "shop has no endpoint in production"),
        (("get", *SERVERS, "no name"), 1, "400 "),
        (("watch", *SERVERS, "no name"), 1, "400 "),
        (("set", *SERVERS, "shop"), 2, "which endpoints?"),
        (("drop", *SERVERS, "shop"), 2, "which endpoints?"),
        (("set", *SERVERS, "shop", "--connect", "nowhere"), 2, "nowhere"),
        (("serve", "--bind", "ipc://*"), 78, "give --identity"),
        (("serve", "--bind", "ipc://c", "--file", "missing.toml"), 78, "check the path"),
        (("serve", "--bind", "ipc://c", "--file", "broken.toml"), 78, "not TOML"),
        (("serve", "--bind", "ipc://c", "--file", "odd.toml"), 78, "write bind ="),
        (("serve", "--bind", "ipc://c", "--file", "invalid.toml"), 78, "a b"),
    ],
)
def test_failures_have_codes_and_reasons(programs: Programs, arguments: tuple[str, ...], code: int, complaint: str) -> None:
    (programs.folder / "broken.toml").write_text("[")
    (programs.folder / "odd.toml").write_text('[test.shop]\nconnect = "tcp://a:1"\n')
    (programs.folder / "invalid.toml").write_text('[test."a b"]\nconnect = ["tcp://a:1"]\n')
    if "ipc://a" in arguments:
        serve(programs, "ipc://a")
    ended = programs.run("freelance", "names", *arguments)
    assert (ended.code, ended.out) == (code, b"")
    assert complaint in ended.err
