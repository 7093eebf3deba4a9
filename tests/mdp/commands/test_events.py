"""mdp.commands.events: the event log of a broker on the terminal.

Rules of specs/mdp.md: SHD-15.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from mdp.commands import events as commands
from mdp.commands.main import main
from mdp.eventlog.files import EventLogWriter, segments, shard_log
from mdp.eventlog.format import ANSWERED, FAILED, Block
from mdp.eventlog.tail import runs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mdp.eventlog.format import Event
    from mdp.eventlog.tail import Run

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def block(kind: int, number: int, *, code: str = "", text: str = "") -> Block:
    return Block(kind, 1, 100.0 + number, b"total", b"\1\2", b"\3", number.to_bytes(8, "big"), 2, 99.0, 99.5, 10, 20, code, text)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    with EventLogWriter(tmp_path) as writer:
        writer.append(block(ANSWERED, 1, text=PARENT))
        writer.append(block(FAILED, 2, code="HANDLER_ERROR"))
    return tmp_path


def printed(*arguments: str) -> list[str]:
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    return result.output.splitlines()


def test_a_request_that_is_not_in_the_log(directory: Path) -> None:
    for wanted, text in (("00000000000000ff", "no event of it in"), ("97be0719", "an ID has 16 digits, mdp events show prints them")):
        result = CliRunner().invoke(main, ("trace", wanted, str(directory)))
        assert result.exit_code == 1
        assert text in result.output


def test_show_and_its_filters(directory: Path) -> None:
    first, second = printed("events", "show", str(directory))
    assert "answered" in first
    assert "0000000000000001" in first
    assert "queue 500.0 ms" in first
    assert "HANDLER_ERROR" in second
    assert printed("events", "show", str(directory), "--kind", "failed") == [second]
    assert printed("events", "show", str(directory), "--service", "other") == []
    as_json = [json.loads(line) for line in printed("events", "show", "--json", str(directory))]
    assert [(event["kind"], event["service"], event["reply_bytes"]) for event in as_json] == [
        ("answered", "total", 20),
        ("failed", "total", 20),
    ]


def test_trace_shows_the_steps_of_a_request(directory: Path) -> None:
    way = printed("trace", "0000000000000002", str(directory))
    assert way[0] == "request 0000000000000002 of client 03 to total"
    assert [line.split("  ")[-1].strip() for line in way[1:4]] == ["accepted", "given to worker 0102, attempt 2", "failed HANDLER_ERROR"]
    assert "+500.0 ms" in way[2]
    assert printed("trace", PARENT[3:35], str(directory))[0].startswith("request 0000000000000001")
    assert json.loads(printed("trace", "--json", "0000000000000001", str(directory))[0])["text"] == PARENT
    result = CliRunner().invoke(main, ["trace", "00000000000000ff", str(directory)])
    assert result.exit_code == 1
    assert "no event of it" in result.output


def test_control_characters_of_peers_are_escaped_on_the_terminal(tmp_path: Path) -> None:
    with EventLogWriter(tmp_path) as writer:
        writer.append(block(FAILED, 2, code="\x1b[2J", text="left\nforged"))
    (line,) = printed("events", "show", str(tmp_path))
    assert line.endswith("  \\x1b[2J  left\\nforged")
    way = printed("trace", "0000000000000002", str(tmp_path))
    assert way[3].endswith("  failed \\x1b[2J")
    assert way[4].endswith(", left\\nforged")


def test_the_logs_of_all_shards_are_read_as_one(tmp_path: Path) -> None:
    for shard, numbers in enumerate(((1, 4), (2, 3), ())):
        with EventLogWriter(shard_log(tmp_path, shard)) as writer:
            for number in numbers:
                writer.append(block(ANSWERED, number, text=PARENT))
    found = [json.loads(line)["request_id"] for line in printed("events", "show", "--json", str(tmp_path))]
    assert found == [f"{number:016x}" for number in (1, 2, 3, 4)]
    assert len(printed("trace", "--json", PARENT[3:35], str(tmp_path))) == 4


async def test_tail_follows_the_shards_of_now_and_later(tmp_path: Path) -> None:
    with EventLogWriter(shard_log(tmp_path, 0)) as first:
        first.append(block(ANSWERED, 1))
    seen: list[Event] = []
    following = asyncio.ensure_future(commands._follow(str(tmp_path), seen.append, None, None, 0.001))
    await asyncio.sleep(0)
    for shard in (0, 1):
        with EventLogWriter(shard_log(tmp_path, shard)) as writer:
            writer.append(block(ANSWERED, 2 + shard))
        async with asyncio.timeout(60):
            while len(seen) <= shard:
                await asyncio.sleep(0.001)
    following.cancel()
    assert [event.request_id for event in seen] == [f"{number:016x}" for number in (2, 3)]


async def test_tail_prints_what_is_written_from_now_on(directory: Path) -> None:
    seen: list[Event] = []
    following = asyncio.ensure_future(commands._follow(str(directory), seen.append, None, "total", 0.001))
    await asyncio.sleep(0)
    with EventLogWriter(directory) as writer:
        writer.append(block(ANSWERED, 3))
    async with asyncio.timeout(60):
        while not seen:
            await asyncio.sleep(0.001)
    following.cancel()
    with pytest.raises(asyncio.CancelledError):
        await following
    assert [event.request_id for event in seen] == ["0000000000000003"]


async def until(seen: list[Event], *numbers: int) -> None:
    async with asyncio.timeout(60):
        while len(seen) < len(numbers):
            await asyncio.sleep(0.001)
    assert [event.request_id for event in seen] == [f"{number:016x}" for number in numbers]


async def test_tail_goes_on_with_the_log_that_took_the_place_of_another(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EventLogWriter(directory) as writer:
        writer.append(block(ANSWERED, 3))
    seen: list[Event] = []
    following = asyncio.ensure_future(commands._follow(str(directory), seen.append, None, None, 0.001))
    await asyncio.sleep(0)
    for path in segments(directory):
        path.unlink()
    with EventLogWriter(directory) as writer:
        writer.append(block(ANSWERED, 4))
        await asyncio.wait([following, asyncio.ensure_future(until(seen, 4))], return_when=asyncio.FIRST_COMPLETED)
        assert not following.done()
    following.cancel()
    assert "another log" in caplog.text


async def test_tail_goes_on_behind_a_segment_that_is_removed_before_it_is_printed(
    directory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def found_and_removed(*arguments: Any, **named: Any) -> Iterator[Run]:
        for run in runs(*arguments, **named):
            if run.segment == 2:
                run.path.unlink(missing_ok=True)
            yield run

    seen: list[Event] = []
    following = asyncio.ensure_future(commands._follow(str(directory), seen.append, None, None, 0.001))
    await asyncio.sleep(0)
    monkeypatch.setattr(commands, "runs", found_and_removed)
    for number in (3, 4):
        with EventLogWriter(directory) as writer:
            writer.append(block(ANSWERED, number))
    await asyncio.wait([following, asyncio.ensure_future(until(seen, 4))], return_when=asyncio.FIRST_COMPLETED)
    assert not following.done()
    following.cancel()
    assert "no longer has segment 0000000000000002" in caplog.text
