"""The app: a shop of twelve functions on a pool of SQLite connections."""

from __future__ import annotations

import asyncio
import datetime
import os
import sqlite3
from collections.abc import AsyncGenerator, AsyncIterator  # noqa: TC003 - annotations of services are read at run time
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import mdp
from mdp.tracing import Spans

if TYPE_CHECKING:
    from collections.abc import Iterator

app = mdp.App()
app.middleware(Spans())  # a span for each call; they go nowhere unless the program has set up OpenTelemetry

TABLES = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS item (name TEXT PRIMARY KEY, price TEXT NOT NULL, stock INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS purchase (
    number INTEGER PRIMARY KEY, customer TEXT NOT NULL, name TEXT NOT NULL, count INTEGER NOT NULL, state TEXT NOT NULL, at TEXT NOT NULL
);
"""


# ------------------------------------------------------------------------------------------------------------------- types


class State(Enum):
    OPEN = "open"
    PAID = "paid"
    SHIPPED = "shipped"
    CANCELLED = "cancelled"


@dataclass
class Item:
    name: str
    price: Decimal
    stock: int


@dataclass
class Purchase:
    number: int
    name: str
    count: int
    state: State
    at: datetime.datetime


class NotKnown(mdp.HandlerError):
    """There is no such item, or no such purchase of this customer."""

    default_code = "SHOP_NOT_KNOWN"


class TooFew(mdp.HandlerError):
    """There are fewer than wanted."""

    default_code = "SHOP_TOO_FEW"


class WrongState(mdp.HandlerError):
    """The purchase has gone too far, or not far enough."""

    default_code = "SHOP_WRONG_STATE"


# -------------------------------------------------------------------------------------------------------------------- pool


class Pool:
    """Connections to one file; a request has one of them until it has ended."""

    def __init__(self, path: str, size: int) -> None:
        self._all = [sqlite3.connect(path, isolation_level=None) for _ in range(size)]
        self._free: asyncio.Queue[sqlite3.Connection] = asyncio.Queue()
        for one in self._all:
            one.executescript(TABLES)
            self._free.put_nowait(one)

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[sqlite3.Connection, None]:
        one = await self._free.get()
        try:
            with one:  # commits, or undoes all if the handler fails
                one.execute("BEGIN")
                yield one
        finally:
            self._free.put_nowait(one)

    def close(self) -> None:
        for one in self._all:
            one.close()


@app.lifespan
async def resources() -> AsyncIterator[Pool]:
    pool = Pool(os.environ.get("SHOP_FILE", "shop.db"), size=4)
    yield pool
    pool.close()


async def get_connection() -> AsyncIterator[sqlite3.Connection]:
    async with app.state.connection() as connection:
        yield connection


Db = Annotated[sqlite3.Connection, mdp.Depends(get_connection)]


def get_customer(request: mdp.Request) -> str:
    """Return the name by which the broker knows the caller's key; nobody can claim another's."""
    return request.user or "anonymous"


Customer = Annotated[str, mdp.Depends(get_customer)]


# --------------------------------------------------------------------------------------------------------------- functions


@app.service("shop.add")
async def add(item: Item, db: Db) -> None:
    """Put an item into the shop, or change its price and stock."""
    db.execute("INSERT OR REPLACE INTO item VALUES (?, ?, ?)", (item.name, str(item.price), item.stock))


@app.service("shop.remove")
async def remove(name: str, db: Db) -> bool:
    """Take an item out of the shop; return whether there was one."""
    return bool(db.execute("DELETE FROM item WHERE name = ?", (name,)).rowcount)


@app.service("shop.items")
async def items(db: Db) -> list[Item]:
    """Return all items, by name."""
    return [_item(row) for row in db.execute("SELECT * FROM item ORDER BY name")]


@app.service("shop.price")
async def price(name: str, count: int, db: Db) -> Decimal:
    """Return what so many cost."""
    return _known(db, name).price * count


@app.service("shop.stock")
async def stock(name: str, db: Db) -> int:
    """Return how many there are."""
    return _known(db, name).stock


@app.service("shop.buy")
async def buy(name: str, count: int, customer: Customer, db: Db) -> int:
    """Reserve items for the caller, once for each `key`; return the number of the purchase."""
    if _known(db, name).stock < count:
        raise TooFew(text=f"fewer than {count} of {name}")
    db.execute("UPDATE item SET stock = stock - ? WHERE name = ?", (count, name))
    now = datetime.datetime.now(datetime.UTC).isoformat()
    row = (customer, name, count, State.OPEN.value, now)
    return db.execute("INSERT INTO purchase (customer, name, count, state, at) VALUES (?, ?, ?, ?, ?)", row).lastrowid or 0


@app.service("shop.pay", rate=mdp.Rate(10, burst=20), retry=mdp.Retry(attempts=3, base_s=0.05))
async def pay(number: int, amount: Decimal, customer: Customer, db: Db) -> None:
    """Pay a purchase of the caller."""
    found = _purchase(db, number, customer)
    if amount != _known(db, found.name).price * found.count:
        raise WrongState(text="that is not what it costs")
    _move(db, found, State.OPEN, State.PAID)


@app.service("shop.cancel")
async def cancel(number: int, customer: Customer, db: Db) -> None:
    """Cancel a purchase of the caller that was not paid; its items can be bought again."""
    found = _purchase(db, number, customer)
    _move(db, found, State.OPEN, State.CANCELLED)
    db.execute("UPDATE item SET stock = stock + ? WHERE name = ?", (found.count, found.name))


@app.service("shop.state")
async def state(number: int, customer: Customer, db: Db) -> State:
    """Return the state of a purchase of the caller."""
    return _purchase(db, number, customer).state


@app.service("shop.purchases")
async def purchases(since: datetime.datetime, customer: Customer, db: Db) -> AsyncIterator[Purchase]:
    """Yield the purchases of the caller, the oldest first."""
    for row in _purchases(db, "customer = ? AND at >= ?", (customer, since.isoformat())):
        yield row


@app.service("shop.ship")
async def ship(number: int, db: Db) -> None:
    """Ship a purchase of anybody; the rules of the broker say who may."""
    found = next(_purchases(db, "number = ?", (number,)), None)
    if found is None:
        raise NotKnown(text=f"purchase {number}")
    _move(db, found, State.PAID, State.SHIPPED)


@app.service("shop.unshipped")
async def unshipped(db: Db) -> list[int]:
    """Return the numbers of the purchases that are paid and not shipped."""
    return [one.number for one in _purchases(db, "state = ?", (State.PAID.value,))]


# ------------------------------------------------------------------------------------------------------------------- tables


def _item(row: tuple[str, str, int]) -> Item:
    name, price_text, count = row
    return Item(name, Decimal(price_text), count)


def _known(db: sqlite3.Connection, name: str) -> Item:
    row = db.execute("SELECT * FROM item WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise NotKnown(text=name)
    return _item(row)


def _purchases(db: sqlite3.Connection, where: str, values: tuple[object, ...]) -> Iterator[Purchase]:
    for number, name, count, state_text, at in db.execute(
        f"SELECT number, name, count, state, at FROM purchase WHERE {where} ORDER BY number", values
    ).fetchall():
        yield Purchase(number, name, count, State(state_text), datetime.datetime.fromisoformat(at))


def _purchase(db: sqlite3.Connection, number: int, customer: str) -> Purchase:
    found = next(_purchases(db, "number = ? AND customer = ?", (number, customer)), None)
    if found is None:
        raise NotKnown(text=f"purchase {number}")
    return found


def _move(db: sqlite3.Connection, found: Purchase, before: State, after: State) -> None:
    if found.state is not before:
        raise WrongState(text=f"it is {found.state.value}")
    db.execute("UPDATE purchase SET state = ? WHERE number = ?", (after.value, found.number))
