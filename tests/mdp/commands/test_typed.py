"""`mdp describe`, `mdp stub` and `mdp call --args --kwargs`, as processes."""

from __future__ import annotations

import json
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

import pytest

from mdp.commands.typed import _lines
from mdp.typed.descriptions import description_of

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scenes.programs import Programs

SHOP = '''
from collections.abc import AsyncIterator
from dataclasses import dataclass
import mdp

@dataclass
class Line:
    item: str
    price: float
    raw: bytes = b"\\xff"

@mdp.service("total", version="1.2")
async def total(lines: list[Line], discount: float = 0.0) -> float:
    """Sum the lines."""
    return sum(line.price for line in lines) * (1 - discount)

@mdp.service("count")
async def count(upto: int, result: str = "n") -> AsyncIterator[dict[int, Line]]:
    for number in range(upto):
        yield {number: Line(result, number)}
'''

USE = """
import asyncio
import client, mdp

async def main() -> None:
    async with mdp.Client("ipc://broker.sock") as broker:
        print(await client.total(broker, [client.Line(item="tea", price=6.0)]))
        async for value in client.count(broker, 1):
            print({number: line.price for number, line in value.items()})

asyncio.run(main())
"""


@pytest.fixture
def broker(programs: Programs, tmp_path: Path) -> str:
    (tmp_path / "shop.py").write_text(SHOP)
    programs.start("mdp", "broker", "--bind", "ipc://broker.sock").said("broker serves")
    worker = programs.start("mdp", "worker", "--broker", "ipc://broker.sock", "--app", "shop")
    worker.said("registered")
    worker.said("registered")
    return "ipc://broker.sock"


def test_a_typed_service_is_called_described_and_its_errors_shown(programs: Programs, broker: str) -> None:
    call = ("mdp", "call", "--broker", broker)
    lines = '[[{"item": "tea", "price": 4}]]'
    assert programs.run(*call, "--args", lines, "total").lines == ["4.0"]
    assert programs.run(*call, "--args", lines, "--kwargs", '{"discount": 0.5}', "total").lines == ["2.0"]
    assert json.loads(programs.run(*call, "--json", "--args", lines, "total").out) == {"service": "total", "result": 4.0}
    values = programs.run(*call, "--kwargs", '{"upto": 2, "result": "a"}', "count")
    assert [json.loads(line) for line in values.lines] == [{str(n): {"item": "a", "price": n, "raw": "/w=="}} for n in (0, 1)]
    assert programs.run(*call, "--args", "[0]", "count").lines == []
    failed = programs.run(*call, "--args", '[[{"item": "tea", "price": "4"}]]', "total")
    assert (failed.code, "$.lines[0].price: expected float, got str" in failed.err) == (1, True)
    for wrong in (["--args", "{}"], ["--kwargs", "[]"], ["--args", "[1"], ["--args", "[" * 5000], ["--args", "[]", "body"]):
        assert programs.run(*call, *wrong[:2], "total", *wrong[2:]).code == 2
    described = programs.run("mdp", "describe", "--broker", broker, "total")
    assert described.lines[:3] == ["total(lines: list[Line], discount: float = 0.0) -> float", "version 1.2", "    Sum the lines."]
    as_json = json.loads(programs.run("mdp", "describe", "--broker", broker, "--json", "count").out)
    assert (as_json["stream"], as_json["arguments"]["required"]) == (True, ["upto"])
    assert programs.run("mdp", "describe", "--broker", broker, "missing").code == 1


def test_a_written_stub_is_a_module_that_calls_the_services(programs: Programs, broker: str, tmp_path: Path) -> None:
    written = programs.run("mdp", "stub", "--broker", broker, "total", "count")
    assert written.code == 0
    (tmp_path / "client.py").write_bytes(written.out)
    (tmp_path / "use.py").write_text(USE)
    used = programs.run("use")
    assert used.err == ""
    assert used.lines == ["6.0", "{0: 0.0}"]
    refused = programs.run("mdp", "stub", "--broker", broker, "mmi.service")
    assert (refused.code, refused.out) == (1, b"")


class Place(NamedTuple):
    x: float
    y: float


def test_a_named_tuple_is_described_by_its_values() -> None:
    def move(to: Place) -> int:
        return int(to.x)

    assert _lines(description_of(move, "move")) == ["move(to: Place) -> int", 'Place: {"type": "number"}, {"type": "number"}']


class State(Enum):
    NEW = "new"
    PAID = "paid"


def test_an_enum_is_described_by_its_values() -> None:
    def orders(state: State) -> int:
        return len(state.value)

    assert _lines(description_of(orders, "orders")) == ["orders(state: State) -> int", 'State: "new", "paid"']
