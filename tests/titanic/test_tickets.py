"""File of open tickets, over crashes and restarts."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

import mdp
import titanic
from tests.scenes.full_files import room_for
from titanic.tickets import REWRITE_LINES, TicketFile

if TYPE_CHECKING:
    from pathlib import Path


async def test_what_was_not_struck_is_there_again(tmp_path: Path) -> None:
    """BEY-09."""
    book = TicketFile(tmp_path / "book")
    await book.add("A" * 32, "echo", "k")
    await book.add("B" * 32, "echo", None)
    await book.add("A" * 32, "echo", "k")
    await book.remove("B" * 32)
    await book.remove("C" * 32)
    again = TicketFile(tmp_path / "book")
    assert again.load_now() == {"A" * 32: {"open": "A" * 32, "service": "echo", "key": "k"}}
    assert len((tmp_path / "book").read_text().splitlines()) == 3


async def test_half_a_line_of_a_crash_harms_nothing(tmp_path: Path) -> None:
    path = tmp_path / "book"
    path.write_bytes(b'{"open": "A"}\n[1]\n\xff\xfe\n{"open": 5}\n{"open": "B", "serv')
    book = TicketFile(path)
    assert list(book.load_now()) == ["A"]
    await book.add("C", "echo", None)
    again = TicketFile(path)
    assert list(again.load_now()) == ["A", "C"]


@pytest.mark.faults
async def test_a_line_that_the_disk_takes_in_part_costs_no_other_ticket(tmp_path: Path) -> None:
    """The ticket is recorded when it is tried again, and so is the end of one that is closed."""
    path = tmp_path / "book"
    book = TicketFile(path)
    await book.add("A", "echo", None)
    with room_for(path, 5), pytest.raises(OSError, match="large"):
        await book.add("B", "echo", None)
    with room_for(path, 5), pytest.raises(OSError, match="large"):
        await book.remove("A")
    await book.add("C", "echo", None)
    await book.add("B", "echo", None)
    assert list(TicketFile(path).load_now()) == ["A", "C", "B"]
    await book.remove("A")
    assert list(TicketFile(path).load_now()) == ["C", "B"]


async def test_a_long_book_is_written_anew_without_what_was_struck(tmp_path: Path) -> None:
    book = TicketFile(tmp_path / "book")
    for number in range(REWRITE_LINES):
        await book.add(str(number), "echo", None)
        if number % 10:
            await book.remove(str(number))
    again = TicketFile(tmp_path / "book")
    assert len(again.load_now()) == REWRITE_LINES // 10
    assert len((tmp_path / "book").read_text().splitlines()) == REWRITE_LINES // 10


@pytest.mark.parametrize(
    ("opened", "closed", "rewritten"), [(500, 500, False), (501, 500, True), (753, 251, False), (752, 252, True), (751, 251, True)]
)
def test_a_book_is_written_anew_when_it_is_long_and_more_than_half_was_struck(
    opened: int, closed: int, rewritten: bool, tmp_path: Path
) -> None:
    assert REWRITE_LINES == 1000
    rows = [*({"open": f"{n}", "service": "echo", "key": None} for n in range(opened)), *({"closed": f"{n}"} for n in range(closed))]
    path = tmp_path / "book"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    book = TicketFile(path)
    left = [f"{n}" for n in range(closed, opened)]
    assert list(book.load_now()) == list(book.load_now()) == left
    assert len(path.read_text().splitlines()) == (len(left) if rewritten else opened + closed)


async def test_a_book_of_one_torn_line_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "book"
    path.write_bytes(b'{"open": "A", "serv')
    await TicketFile(path).add("B", "echo", None)
    assert list(TicketFile(path).load_now()) == ["B"]


async def test_what_is_in_the_file_is_known_at_the_first_change(tmp_path: Path) -> None:
    """BEY-09."""
    path = tmp_path / "book"
    for uuid in ("A", "B"):
        await TicketFile(path).add(uuid, "echo", None)
    await TicketFile(path).add("A", "echo", None)
    assert len(path.read_text().splitlines()) == 2
    await TicketFile(path).remove("A")
    book = TicketFile(path)
    await book.load()
    assert list(book.open) == ["B"]


async def test_a_client_takes_up_where_another_left_off(tmp_path: Path) -> None:
    """BEY-09: stored by one, fetched and closed by the next."""

    async def echo(request: mdp.Request) -> list[bytes]:
        return list(request.body)

    book = tmp_path / "book"
    async with mdp.Broker() as broker:
        endpoint = broker.bind("tcp://127.0.0.1:*")
        store = titanic.Store(None, None)
        async with titanic.Service(endpoint, store), mdp.Worker(endpoint, "echo", handler=echo):
            async with titanic.Client(endpoint, book=book) as client:
                kept = await client.submit("echo", b"one", key="k")
                gone = await client.submit("echo", b"two")
                await gone.close()
            async with titanic.Client(endpoint, book=book) as client:
                (ticket,) = client.tickets()
                assert ticket.uuid == kept.uuid
                assert await ticket.result(100) == [b"one"]
                await ticket.close()
                assert client.tickets() == []
            await asyncio.sleep(0)
            assert store.index.entries == {}


async def test_a_ticket_whose_recording_was_cancelled_is_recorded_when_it_is_submitted_again(tmp_path: Path) -> None:
    """A submit that waits for the file gives up; with the same key it returns the same ticket."""
    path = tmp_path / "book"
    book = TicketFile(path)
    await book.add("A", "echo", None)
    for change in (book.add("B", "echo", None), book.remove("A")):
        writing = asyncio.ensure_future(book.add("C", "echo", None))  # has the file
        waits = asyncio.ensure_future(change)
        await asyncio.sleep(0)
        waits.cancel()
        await asyncio.wait([waits, writing])
        await book.remove("C")
    await book.add("B", "echo", None)
    await book.remove("A")
    assert list(TicketFile(path).load_now()) == ["B"]


@pytest.mark.faults
async def test_a_ticket_that_was_closed_is_taken_out_of_the_book_when_it_is_closed_again(tmp_path: Path) -> None:
    """The first time the disk was full; the next client would wait for a request that is not there."""
    path = tmp_path / "book"
    async with mdp.Broker() as broker:
        endpoint = broker.bind("tcp://127.0.0.1:*")
        async with titanic.Service(endpoint, titanic.Store(None, None)), titanic.Client(endpoint, book=path) as client:
            ticket = await client.submit("echo", b"one", key="k")
            with room_for(path, 5), pytest.raises(OSError, match="large"):
                await ticket.close()
            await ticket.close()
            assert client.tickets() == []
    assert list(TicketFile(path).load_now()) == []


def test_a_book_that_is_written_anew_is_still_for_its_user_alone(tmp_path: Path) -> None:
    path = tmp_path / "book"
    rows = [*({"open": f"{n}"} for n in range(REWRITE_LINES)), *({"closed": f"{n}"} for n in range(REWRITE_LINES))]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    path.chmod(0o600)
    TicketFile(path).load_now()
    assert (path.read_text().strip(), path.stat().st_mode & 0o777) == ("", 0o600)
