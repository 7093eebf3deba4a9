"""The orders of the pipeline, and the service that prices them.

mdp worker --service orders.price --handler examples.pipeline.orders:price

A body is `[order, product, quantity]` as text, the reply a msgpack map `{"price": "12.50"}`. One order in a hundred has a quantity that
somebody has mistyped: the service fails for it each time, and Titanic gives it up as a dead letter.
"""

from __future__ import annotations

import asyncio
import csv
import os
import random
from decimal import Decimal
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mdp import Request

SERVICE = "orders.price"
HANDLER = "examples.pipeline.orders:price"
COLUMNS = "order_id string, product string, quantity string"
PRICES = {f"P{number:02}": Decimal(199 + 37 * number) / 100 for number in range(40)}
MISTYPED_EVERY = 100


def price_of(product: str, quantity: str) -> Decimal:
    """Return the price of an order; raises ValueError if the quantity is no number."""
    return PRICES[product] * int(quantity)


async def price(request: Request) -> bytes:
    """Answer `[order, product, quantity]` after as many milliseconds as `PIPELINE_SERVICE_MS` says."""
    _, product, quantity = (frame.decode() for frame in request.body)
    await asyncio.sleep(float(os.environ.get("PIPELINE_SERVICE_MS") or 0) / 1000)
    return msgspec.msgpack.encode({"price": str(price_of(product, quantity))})


def files_of_orders(files: int, rows: int, seed: int = 1) -> Iterator[list[tuple[str, str, str]]]:
    """Yield the rows of each file, the same for the same seed."""
    chance = random.Random(seed)
    orders: list[tuple[str, str, str]] = []
    for number in range(files * rows):
        quantity = str(chance.randint(1, 9)) + ("x" if number % MISTYPED_EVERY == MISTYPED_EVERY // 2 else "")
        orders.append((f"A{number:06}", chance.choice(list(PRICES)), quantity))
        if len(orders) == rows:
            yield orders
            orders = []


def drop_file(arrivals: Path, name: str, orders: list[tuple[str, str, str]]) -> None:
    """Write a CSV file beside the directory and move it there, so that no half of it is read."""
    arrivals.mkdir(parents=True, exist_ok=True)
    beside = arrivals.parent / name
    with beside.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("order_id", "product", "quantity"), *orders])
    os.replace(beside, arrivals / name)
