"""freelance.cli: servers and clients in separate processes, exit codes, signals."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.scenes.programs import Program, Programs


@pytest.fixture
def programs(programs: Programs) -> Programs:
    (programs.folder / "shop.py").write_text("async def shout(body):\n    return [frame.upper() for frame in body]\nprice = 3\n")
    return programs


def serve(programs: Programs, bind: str, *more: str) -> Program:
    server = programs.start("freelance", "serve", "--bind", bind, *more)
    server.said("server runs")
    return server


def test_call_finds_the_server_that_is_there(programs: Programs) -> None:
    serve(programs, "ipc://b")
    ended = programs.run("freelance", "call", "--model", "3", "--to", "ipc://a", "--to", "ipc://b", "--timeout", "20", "hello", "wörld")
    assert (ended.code, ended.out.decode(), ended.err) == (0, "hello\nwörld\n", "")


@pytest.mark.parametrize("model", ["1", "2"])
def test_other_models(programs: Programs, model: str) -> None:
    serve(programs, "ipc://a", "--model", model, "--handler", "shop:shout")
    ended = programs.run("freelance", "call", "--model", model, "--to", "ipc://a", "--timeout", "20", "-", given=b"hello")
    assert ended.lines == ["HELLO"]


def test_json_shows_frames(programs: Programs) -> None:
    serve(programs, "ipc://a")
    ended = programs.run("freelance", "call", "--to", "ipc://a", "--timeout", "20", "--json", "-", "x", given=b"\xff")
    assert json.loads(ended.out) == {"frames": [{"base64": "/w=="}, "x"]}


@pytest.mark.parametrize("model", ["1", "2", "3"])
def test_no_server_is_69(programs: Programs, model: str) -> None:
    ended = programs.run("freelance", "call", "--model", model, "--to", "ipc://nobody", "--timeout", "1", "x")
    assert (ended.code, ended.out) == (69, b"")
    assert ended.complaint.startswith("freelance: no server answered within ")
    assert ended.complaint.endswith(": ipc://nobody ([Errno 2] No such file or directory)")


def test_address_in_use_is_69(programs: Programs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ended = programs.run("freelance", "serve", "--bind", f"tcp://127.0.0.1:{taken.getsockname()[1]}")
    assert (ended.code, "cannot listen" in ended.complaint) == (69, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("call", "x"),
        ("call", "--to", "ipc://a"),
        ("call", "--to", "nowhere", "x"),
        ("call", "--to", "ipc://a", "--model", "4", "x"),
        ("call", "--to", "ipc://a", "--model", "2", "x", "y"),
        ("serve", "--bind", "ipc://a", "--handler", "shop:none"),
        ("serve", "--bind", "ipc://a", "--handler", "shop:price"),
    ],
)
def test_usage_is_2(programs: Programs, arguments: tuple[str, ...]) -> None:
    assert programs.run("freelance", *arguments).code == 2


def test_a_nameless_endpoint_needs_an_identity(programs: Programs) -> None:
    ended = programs.run("freelance", "serve", "--bind", "ipc://*")
    assert (ended.code, "give --identity" in ended.complaint) == (78, True)
    named = programs.start("freelance", "serve", "--bind", "ipc://*", "--identity", "ipc://known")
    assert "ipc://known" in named.said("server runs")


def test_sigterm_drains_and_is_0(programs: Programs) -> None:
    assert serve(programs, "ipc://a").stop().code == 0
