"""mdp.typed.stubs: functions that call a service and have its signature, from the function or from a description."""

from __future__ import annotations

import ast
import datetime
import decimal
import sys
import uuid
from collections.abc import AsyncIterator  # noqa: TC003 - annotations of services are read at run time
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal, NamedTuple, assert_type

import msgspec
import pytest

import mdp
import mdp.testing
from mdp.typed.descriptions import Description, describe, description_of
from mdp.typed.schema_details import ENUM_NAMES
from mdp.typed.stubs import LEFT_OUT, stub_source
from tests.mdp.typed import written_stub


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Place(NamedTuple):
    x: float
    y: float


class Card(msgspec.Struct, tag="card"):
    number: str


class Cash(msgspec.Struct, tag="cash"): ...


@dataclass
class Line:
    item: str
    price: float
    count: int = 1
    tags: list[str] = field(default_factory=list)
    inner: list[Line] = field(default_factory=list)
    raw: bytes = b"\xff"
    colour: Literal["red", "blue"] | None = "red"
    ink: Colour = Colour.BLUE
    since: datetime.datetime | None = None


class SoldOut(mdp.HandlerError):
    """Nothing is left."""

    default_code = "SOLD_OUT"


@mdp.service("shop.total")
async def total(lines: list[Line], discount: float = 0.0, *, options: str = "", client: int | None = None) -> float:
    """Sum the "lines"."""
    return sum(line.price * line.count + len(line.tags) for line in lines) * (1 - discount)


@mdp.service("pay")
async def pay(
    request: mdp.Request,
    by: Card | Cash,
    colour: Colour,
    place: Place,
    day: datetime.date,
    price: decimal.Decimal,
    number: uuid.UUID,
    raw: bytes,
    at: datetime.datetime,
    hours: list[datetime.time | int],
    kind: Literal["a", 1],
    anything: object = None,
    by_number: dict[int, set[str]] = {},  # noqa: B006
) -> dict[str, Card | Cash] | None:
    return {request.service: by}


@mdp.service("count")
async def count(upto: int) -> AsyncIterator[Line]:
    for number in range(upto):
        yield Line("n", number)


@mdp.service("stock", inline=True)
def stock(item: str) -> int:
    if item == "gold":
        raise SoldOut(text="since May")
    if item == "silver":
        raise mdp.HandlerError(code="NOT_SOLD")
    return 3


@mdp.service("raw")
async def raw(request: mdp.Request) -> bytes:
    return b""


HANDLERS = (total, pay, count, stock, raw)
PAID: dict[str, Any] = {
    "colour": written_stub.Colour.RED,
    "at": datetime.datetime(2030, 1, 2, 3, tzinfo=datetime.UTC),
    "hours": [datetime.time(4), 5],
    "place": (1.0, 2.0),
    "day": datetime.date(2030, 1, 2),
    "price": decimal.Decimal("1.10"),
    "number": uuid.UUID(int=5),
    "raw": b"\xff",
    "kind": 1,
}


async def test_a_stub_is_called_as_the_function_is() -> None:
    async with mdp.testing.broker(*HANDLERS) as local:
        sums = local.client.stub(total)
        lines = [Line("a", 1.0, 2), Line("b", 1.0, tags=["x"])]
        assert_type(await sums(lines, discount=0.5), float)
        assert await sums(lines, discount=0.5) == 2.0
        assert await sums(lines, options="mine", client=3) == 4.0
        with pytest.raises(mdp.BadArguments):
            await sums("lines")  # type: ignore[arg-type]
        with pytest.raises(mdp.BadArguments):
            await sums(lines, discuont=1.0)  # type: ignore[call-arg]
        values = local.client.stub(count, options={"deadline": 10.0})
        assert [assert_type(value, Line) async for value in values(2)] == [Line("n", 0.0), Line("n", 1.0)]
        assert [value async for value in values(0)] == []
        day, price, number = datetime.date(2030, 1, 2), decimal.Decimal("1.10"), uuid.UUID(int=5)
        pays = local.client.stub(pay)
        paid = await pays(Card("5"), Colour.RED, Place(1, 2), day, price, number, raw=b"\xff", at=PAID["at"], hours=PAID["hours"], kind=1)
        assert_type(paid, dict[str, Card | Cash] | None)
        assert paid == {"pay": Card("5")}
        assert assert_type(await local.client.stub(stock)("tea"), int) == 3
        whole = local.client.stub(sys.modules[__name__])
        assert await whole.stock("tea") == 3
        assert not hasattr(whole, "raw")
        for none in (raw, test_a_stub_is_called_as_the_function_is, len, ast):
            with pytest.raises(TypeError, match="decorate"):
                local.client.stub(none)


async def test_errors_of_a_handlers_own_class_arrive_as_that_class() -> None:
    async with mdp.testing.broker(stock) as local:
        ask = local.client.stub(stock)
        with pytest.raises(SoldOut) as sold:
            await ask("gold")
        assert (sold.value.code, sold.value.text, sold.value.service) == ("SOLD_OUT", "since May", "stock")
        with pytest.raises(mdp.HandlerError) as unknown:
            await ask("silver")
        assert (type(unknown.value), unknown.value.code) == (mdp.HandlerError, "NOT_SOLD")


async def test_the_written_stub_is_that_of_the_descriptions_and_works() -> None:
    """`written_stub.py` is checked by the type checker with the other tests."""
    async with mdp.testing.broker(*HANDLERS) as local:
        client = local.client
        source = stub_source([await describe(client, name) for name in ("shop.total", "pay", "count", "stock")])
        assert ast.dump(ast.parse(source)) == ast.dump(ast.parse(Path(written_stub.__file__).read_text(encoding="utf-8"))), source
        lines = [written_stub.Line(item="a", price=2.0), written_stub.Line(item="b", price=1.0, tags=["x"])]
        assert assert_type(await written_stub.shop_total(client, lines, 0.5), float) == 2.0
        paid = await written_stub.pay(client, written_stub.Cash(), **PAID)
        assert paid == {"pay": written_stub.Cash()}
        assert [value.item async for value in written_stub.count(client, 2)] == ["n", "n"]
        with pytest.raises(mdp.BadArguments):
            await written_stub.shop_total(client, lines, discount="much")  # type: ignore[arg-type]
        with pytest.raises(SoldOut):
            await written_stub.stock(client, "gold")


def test_names_of_a_peer_do_not_become_code() -> None:
    good = description_of(stock, "stock")
    schema = {"type": "integer"}
    evil = "x): pass\nimport os"
    for described in (
        Description(service="nothing"),
        msgspec.structs.replace(good, service="9 lives"),
        msgspec.structs.replace(good, arguments={"properties": {evil: schema}}),
        msgspec.structs.replace(good, arguments={"properties": {"class": schema}}),
        msgspec.structs.replace(good, definitions={"A": {"properties": {evil: schema}}}),
        msgspec.structs.replace(good, definitions={"9 lives": {"enum": [1], ENUM_NAMES: ["A"]}}),
    ):
        with pytest.raises(ValueError, match=r"name|describes"):
            stub_source([described])
    odd = {"$ref": "#/$defs/A"}
    quoted = msgspec.structs.replace(
        good,
        service="a'\n\"",
        doc='"""\nimport os',
        result=odd,
        definitions={"A": {"enum": ["'", evil]}, "C": {"properties": {"c": 5}}, "B": {"anyOf": [{"$ref": "#/$defs/B"}]}},
        arguments={"properties": {"a": {"$ref": "#/$defs/B"}, "b": {"type": [evil]}, "c": 5, "d": {"type": "object"}}, "required": ["a"]},
    )
    tree = ast.parse(stub_source([quoted]))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import) and node.names[0].name == "os"]
    assert LEFT_OUT is not None


@pytest.mark.parametrize(
    "names,values",
    [
        (["A", "x = 1\nimport os"], ["a", "b"]),
        (["A", "mro"], ["a", "b"]),
        (["_A", "B"], ["a", "b"]),
        (["A", "class"], ["a", "b"]),
        (["A", "A"], ["a", "b"]),
        (["A", "B"], ["a", "a"]),
        (["A", "B"], ["a", 1]),
        (["A", "B"], ["a"]),
        (["A", 5], ["a", "b"]),
        ("AB", ["a", "b"]),
    ],
)
def test_an_enum_whose_members_are_none_of_python_is_its_values(names: object, values: list[object]) -> None:
    kind = {"enum": values, ENUM_NAMES: names}
    described = msgspec.structs.replace(description_of(stock, "stock"), result={"$ref": "#/$defs/Kind"}, definitions={"Kind": kind})
    source = stub_source([described])
    assert f"-> Literal[{', '.join(map(repr, values))}]:" in source
    assert "class" not in source
