"""`mdp top`: figures of MMI as a view and as JSON, from a real broker and from a faulty one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import mdp
from core.daemon.exit_codes import RequestFailed
from mdp.commands.top import View, draw, read_view

if TYPE_CHECKING:
    from pathlib import Path

SERVICE = {"name": "echo", "workers": 1, "credit": 4, "queued": 7, "running": 2, "done": 300, "enabled": True}
WORKER = {"id": "00aa", "service": "echo", "dialect": "0.3", "credit": 4, "running": 2, "done": 300, "silent_ms": 12}


def test_a_picture_has_rates_and_fits() -> None:
    before = View(10.0, {"replies": 100}, [SERVICE | {"done": 100}], [])
    view = View(12.0, {"replies": 300, "queued": 7}, [SERVICE], [WORKER])
    lines = draw(view, before, 100, 12).splitlines()
    assert "100 replies/s" in lines[0]
    assert "queued 7" in lines[1]
    echo = next(line for line in lines if line.startswith("echo"))
    assert echo.split() == ["echo", "1", "4", "7", "2", "300", "100"]
    assert any(line.split() == ["00aa", "echo", "0.3", "2/4", "300", "12"] for line in lines)
    assert "draining" not in draw(view, before, 100, 12)
    leaving = draw(view._replace(workers=[WORKER | {"draining": True}]), before, 120, 12).splitlines()
    assert any(line.split() == ["00aa", "echo", "0.3", "2/4", "300", "12", "draining"] for line in leaving)
    many = View(12.0, {}, [SERVICE | {"name": f"s{n}"} for n in range(500)], [WORKER] * 500)
    small = draw(many, None, 40, 20).splitlines()
    assert len(small) <= 20
    assert max(map(len, small)) <= 40


def test_names_cannot_move_the_cursor() -> None:
    evil = "\x1b[2J\r\n"
    view_text = draw(View(1.0, {}, [SERVICE | {"name": evil}], [WORKER | {"id": evil, "dialect": evil}]), None, 200, 50)
    assert "\x1b" not in view_text
    assert "\r" not in view_text


class Liar:
    def __init__(self, *answers: list[bytes]) -> None:
        self.answers = [*answers]

    async def request(self, name: str, body: bytes) -> list[bytes]:
        return self.answers.pop(0)


async def test_a_broker_that_lies_is_no_crash() -> None:
    services = json.dumps([{"name": 5, "queued": "many", "done": None}, None, 7]).encode()
    view = await read_view(Liar([b"200", b'{"replies": "x", "queued": 3}'], [b"200", services], [b"200", b"[[]]"]))  # type: ignore[arg-type]
    assert view.stats == {"queued": 3}
    assert "5" in draw(view, view, 80, 24)


@pytest.mark.parametrize("answer", [[b"501"], [b"200"], [b"200", b"{"], [b"200", b"7"]])
async def test_a_broker_without_these_services_is_reported(answer: list[bytes]) -> None:
    with pytest.raises(RequestFailed, match="does not answer"):
        await read_view(Liar(answer, answer, answer))  # type: ignore[arg-type]


async def test_a_real_broker() -> None:
    async def handler(request: mdp.Request) -> bytes:
        return request.body[0]

    async with mdp.Broker() as broker:
        endpoint = broker.bind("tcp://127.0.0.1:*")
        async with mdp.Worker(endpoint, "echo", handler=handler, concurrency=2), mdp.Client(endpoint) as client:
            for _ in range(5):
                await client.request("echo", b"x", wait=True)
            view = await read_view(client)
            assert view.stats["replies"] == 5
            assert [(row["name"], row["done"]) for row in view.services] == [("echo", 5)]
            assert [row["service"] for row in view.workers] == ["echo"]


def test_on_the_command_line(tmp_path: Path) -> None:
    from tests.scenes.programs import Programs

    running = Programs(tmp_path)
    broker = running.start("mdp", "broker", "--bind", "ipc://b")
    broker.said("broker serves")
    shown = running.run("mdp", "top", "--broker", "ipc://b", "--once")
    assert shown.code == 0
    assert shown.lines[0].startswith("mdp top")
    told = running.run("mdp", "top", "--broker", "ipc://b", "--once", "--json")
    assert json.loads(told.out)["stats"]["services"] == 0
    broker.stop()
    running.close()
