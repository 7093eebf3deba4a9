"""Metrics page of a process of workers: each service by name, ready only while all are registered."""

from __future__ import annotations

import asyncio

import mdp
from mdp.observe.worker_metrics import worker_page
from tests.scenes.mdp_handlers import echo


async def test_workers_are_shown_by_service_and_ready_once_all_are_registered() -> None:
    async with mdp.Broker() as broker:
        where = broker.bind("tcp://127.0.0.1:*")
        async with mdp.Worker(where, "echo", handler=echo) as one, mdp.Worker(where, "other", handler=echo) as other:
            page = worker_page([one, other])
            while not (one.connected and other.connected):
                assert page.not_ready()
                await asyncio.sleep(0.005)
            assert page.not_ready() == ""
            async with mdp.Client(where) as client:
                await client.request("echo", b"hello")
            samples = {family.name: dict(family.samples) for family in page.families()}
            assert samples["mdp_worker_answered"] == {("echo",): 1, ("other",): 0}
            assert samples["mdp_worker_handler_handled"][("echo",)] == 1
            assert {family.kind for family in page.families() if family.name == "mdp_worker_running"} == {"gauge"}
            picture = page.snapshot()
            assert (picture.figures["registered"], picture.figures["answered"]) == (2, 1)
            assert [row[0] for row in picture.tables[0].rows] == ["echo", "other"]
    assert page.not_ready() == "no broker knows echo, other"
