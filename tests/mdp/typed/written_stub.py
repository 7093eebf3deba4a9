"""Written by `mdp stub`; write it again instead of editing it."""

# ruff: noqa: TC001, TC003
from __future__ import annotations

import datetime
import decimal
import enum
import uuid
from collections.abc import AsyncIterator
from typing import Any, Literal

import msgspec

import mdp
from mdp.typed.stubs import LEFT_OUT, ask, ask_stream


class Colour(enum.Enum):
    BLUE = "blue"
    RED = "red"


class Line(msgspec.Struct, kw_only=True):
    item: str
    price: float
    count: int = 1
    tags: list[str] | msgspec.UnsetType = msgspec.UNSET
    inner: list[Line] | msgspec.UnsetType = msgspec.UNSET
    raw: bytes | msgspec.UnsetType = msgspec.UNSET
    colour: Literal["blue", "red"] | None = "red"
    ink: Colour = Colour.BLUE
    since: datetime.datetime | None = None


class Card(msgspec.Struct, kw_only=True, tag_field="type", tag="card"):
    number: str


class Cash(msgspec.Struct, kw_only=True, tag_field="type", tag="cash"):
    pass


async def shop_total(
    client_: mdp.Client, lines: list[Line], discount: float = LEFT_OUT, *, options: str = LEFT_OUT, client: int | None = LEFT_OUT
) -> float:
    'Sum the "lines".'
    value: float = await ask(client_, "shop.total", {"lines": lines, "discount": discount, "options": options, "client": client}, float)
    return value


async def pay(
    client: mdp.Client,
    by: Card | Cash,
    colour: Colour,
    place: tuple[float, float],
    day: datetime.date,
    price: decimal.Decimal,
    number: uuid.UUID,
    raw: bytes,
    at: datetime.datetime,
    hours: list[datetime.time | int],
    kind: Literal[1, "a"],
    anything: Any = LEFT_OUT,
    by_number: dict[Any, set[str]] = LEFT_OUT,
) -> dict[Any, Card | Cash] | None:
    value: dict[Any, Card | Cash] | None = await ask(
        client,
        "pay",
        {
            "by": by,
            "colour": colour,
            "place": place,
            "day": day,
            "price": price,
            "number": number,
            "raw": raw,
            "at": at,
            "hours": hours,
            "kind": kind,
            "anything": anything,
            "by_number": by_number,
        },
        dict[Any, Card | Cash] | None,
    )
    return value


async def count(client: mdp.Client, upto: int) -> AsyncIterator[Line]:
    async for value in ask_stream(client, "count", {"upto": upto}, Line):
        yield value


async def stock(client: mdp.Client, item: str) -> int:
    value: int = await ask(client, "stock", {"item": item}, int)
    return value
