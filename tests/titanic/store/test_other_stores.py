"""titanic.store.other_stores: a second store at the same broker is seen and said."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import mdp
import titanic
from core.runtime import supervision
from core.runtime.supervision import Supervisor
from tests.scenes.titanic_pair import JOURNAL
from tests.scenes.waiting import eventually

if TYPE_CHECKING:
    from pathlib import Path


class Broken(Exception):
    """An unexpected error."""


def others(service: titanic.Service) -> float:
    return service.figures()["gauges"]["other_stores"]


@pytest.mark.faults
async def test_two_stores_at_one_broker_are_said_by_both_even_after_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each is asked for tickets of the other, and answers that it never stored them."""
    runs = Counter[str]()

    def probe(name: str) -> None:
        runs[name] += 1
        if name == "titanic other stores" and runs[name] == 1:
            raise Broken

    for name in ("FIRST_LOOK_S", "LOOK_S"):
        monkeypatch.setattr(f"titanic.store.other_stores.{name}", 0.01)
    supervisor = Supervisor(probe)
    with supervision.scope(supervisor):
        await two_stores(tmp_path)
    assert supervisor.faults == {"titanic other stores": 1}
    said = [record for record in caplog.records if "other Titanics serve this broker" in record.getMessage()]
    assert len(said) == 2


async def two_stores(tmp_path: Path) -> None:
    async with mdp.Broker() as broker:
        endpoint = broker.bind(f"ipc://{tmp_path}/b")

        def store(name: str) -> titanic.Service:
            return titanic.Service(endpoint, titanic.Store(titanic.RealDisk(tmp_path / name), JOURNAL))

        async with store("one") as one:
            async with store("two") as two:
                await eventually(lambda: others(one) == others(two) == 1)
            await eventually(lambda: others(one) == 0)


@pytest.mark.parametrize("answer", [[], [b"403"], [b"501"], [b"200"], [b"200", b"?"], [b"200", b"7"], [b"200", json.dumps([{}]).encode()]])
async def test_a_broker_that_says_nothing_of_workers_has_no_other_stores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: list[bytes]
) -> None:
    for name in ("FIRST_LOOK_S", "LOOK_S"):
        monkeypatch.setattr(f"titanic.store.other_stores.{name}", 0.0)
    asked = 0

    async def request(self: mdp.Client, service: bytes, *frames: bytes, **options: object) -> list[bytes]:
        nonlocal asked
        asked += service == b"mmi.workers"
        return answer

    monkeypatch.setattr(mdp.Client, "request", request)
    async with mdp.Broker() as broker:
        async with titanic.Service(broker.bind(f"ipc://{tmp_path}/b"), titanic.Store(titanic.RealDisk(tmp_path / "s"), JOURNAL)) as service:
            await eventually(lambda: asked > (answer != [b"403"]))
            assert others(service) == 0
    assert answer != [b"403"] or asked == 1
