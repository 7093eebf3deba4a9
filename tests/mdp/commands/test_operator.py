"""mdp.commands.operator: operators' commands on a running broker, and on one that answers nonsense."""

from __future__ import annotations

import asyncio
import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.scenes.mdp_scripted_broker import StandIn

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.scenes.programs import Ended, Programs

pytestmark = pytest.mark.timeout(240)  # many processes, on a machine that may be busy

HANDLERS = """
import asyncio, logging, os
import mdp

async def deadly(request):
    logging.warning("working")
    if request.body[0] == b"die" and not os.path.exists("healed"):
        await asyncio.sleep(600)
    return [b"survived", *request.body]

async def not_found(request):
    if not os.path.exists("healed"):
        logging.warning("working")
        await asyncio.sleep(600)
    return b"404"
"""


@pytest.fixture(autouse=True)
def shop(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(HANDLERS)


class Operator:
    """Asks one broker."""

    def __init__(self, programs: Programs, *flags: str) -> None:
        self.programs = programs
        programs.start("mdp", "broker", "--bind", "ipc://b.sock", *flags).said("broker serves")

    def ask(self, *arguments: str) -> Ended:
        return self.programs.run("mdp", *arguments, MDP_BROKER="ipc://b.sock")

    def ask_until(self, reached: Callable[[Ended], bool], *arguments: str) -> Ended:
        while not reached(ended := self.ask(*arguments)):
            pass
        return ended

    def worker(self, service: str, *arguments: str) -> None:
        """Start a worker that the broker knows: it says that it is registered before its READY has left."""
        self.programs.start("mdp", "worker", "--service", service, *arguments, MDP_BROKER="ipc://b.sock").said("registered")
        self.ask_until(lambda ended: ended.lines == ["200"], "mmi", "service", service)

    def bury(self, handler: str = "deadly") -> int:
        """Have a worker killed with a request in flight; return the number of the dead letter."""
        worker = self.programs.start("mdp", "worker", "--service", "deadly", "--handler", f"shop:{handler}", MDP_BROKER="ipc://b.sock")
        worker.said("registered")
        call = self.programs.start("mdp", "call", "deadly", "die", "\x1b[2J", MDP_BROKER="ipc://b.sock")
        worker.said("working")
        worker.kill()
        assert "DEAD_LETTER" in call.end().complaint
        (letter,) = json.loads(self.ask("dlq", "ls", "--json").out)["letters"]
        number = letter["id"]
        assert isinstance(number, int)
        return number


@pytest.fixture
def operator(programs: Programs) -> Operator:
    """Return an operator of a broker that may be managed and makes a dead letter after one lost worker."""
    return Operator(programs, "--manage", "--deliveries-max", "1")


# ---------------------------------------------------------------------------------------------------------------------- services, workers


def test_services_are_a_table_with_aligned_columns(operator: Operator) -> None:
    operator.worker("echo", "--credit", "7")
    operator.worker("a-longer-name", "--handler", "echo", "--credit", "100")
    assert operator.ask("services").lines == [
        "NAME           WORKERS  CREDIT  RUNNING  QUEUED  QUEUED BYTES  DONE  ENABLED",
        "a-longer-name        1     100        0       0             0     0  yes",
        "echo                 1       7        0       0             0     0  yes",
    ]


def test_services_as_json_for_a_program(operator: Operator) -> None:
    assert json.loads(operator.ask("services", "--json").out) == {"services": [], "complete": True}
    operator.worker("echo")
    assert operator.ask("call", "echo", "x").code == 0
    assert operator.ask("mmi", "disable", "echo").lines == ["200"]
    (echo,) = json.loads(operator.ask("services", "--json").out)["services"]
    assert (echo["name"], echo["workers"], echo["done"], echo["enabled"]) == ("echo", 1, 1, False)
    assert operator.ask("services").lines[1].endswith("  no")


def test_workers_of_all_services_or_of_one(operator: Operator) -> None:
    operator.worker("echo")
    operator.worker("sleep")
    everyone = operator.ask("workers").lines
    assert everyone[0].split() == "SERVICE ID DIALECT CREDIT RUNNING DONE SILENT STUCK DRAINING VERSION METADATA".split()
    assert [line.split()[0] for line in everyone[1:]] == ["echo", "sleep"]
    (one,) = json.loads(operator.ask("workers", "--json", "sleep").out)["workers"]
    assert (one["service"], one["dialect"]) == ("sleep", "0.3")
    assert len(operator.ask("workers", "sleep").lines) == 2
    unknown = operator.ask("workers", "nobody")
    assert (unknown.code, unknown.out, unknown.complaint) == (1, b"", "mdp: nobody: the broker knows no such service")


def test_b11_a_truncated_list_says_so(programs: Programs) -> None:
    operator = Operator(programs, "--mmi-max-bytes", "200")
    for name in ("echo", "sleep"):
        operator.worker(name)
    cut = operator.ask("services")
    assert (cut.code, len(cut.lines)) == (0, 2)
    assert cut.complaint.startswith("only the first 1 services")
    answer = json.loads(operator.ask("services", "--json").out)
    assert (len(answer["services"]), answer["complete"]) == (1, False)


# ------------------------------------------------------------------------------------------------------------------------------- check


def test_check_is_one_line_and_0_while_all_is_well(operator: Operator) -> None:
    operator.worker("echo")
    fine = operator.ask("check")
    (line,) = fine.lines
    assert fine.code == 0
    assert line.startswith("ok: 1 services, 1 workers, 0 queued, 0 dead letters, ipc://b.sock answers in ")
    served = operator.ask("check", "--service", "echo").lines
    assert served[0].startswith("ok: echo served, ")
    found = json.loads(operator.ask("check", "--json", "--service", "echo").out)
    assert (found["ok"], found["missing"], found["dialect"], found["gauges"]["workers"]) == (True, [], "0.3", 1)


def test_check_is_1_for_a_service_without_workers(operator: Operator) -> None:
    operator.worker("echo")
    missing = operator.ask("check", "--service", "echo", "--service", "score", "--service", "a\x1bb")
    assert (missing.code, missing.out, missing.complaint) == (1, b"", "mdp: no worker for score, a\\x1bb")
    as_json = operator.ask("check", "--json", "--service", "score")
    assert as_json.code == 1
    assert json.loads(as_json.out)["missing"] == ["score"]


def test_check_is_1_while_requests_wait_for_a_service_without_workers(operator: Operator) -> None:
    operator.worker("echo")
    call = operator.programs.start("mdp", "call", "--wait", "--timeout", "100", "later", "x", MDP_BROKER="ipc://b.sock")
    waits = operator.ask_until(lambda ended: ended.code != 0, "check", "--service", "echo")
    assert (waits.code, waits.out, waits.complaint) == (1, b"", "mdp: requests wait for later, which has no worker")
    both = operator.ask("check", "--service", "score")
    assert both.complaint == "mdp: no worker for score; requests wait for later, which has no worker"
    as_json = operator.ask("check", "--json")
    assert as_json.code == 1
    assert json.loads(as_json.out)["unserved"] == ["later"]
    operator.worker("later", "--handler", "echo")
    assert call.end().lines == ["x"]
    assert operator.ask("check").code == 0


async def test_a_check_that_may_not_list_the_services_is_one_of_the_numbers(programs: Programs) -> None:
    ended = await asked_more(programs, [[b"200", b'{"queued": 3}'], [b"403"]], "check")
    assert ended.code == 0
    assert ended.lines[0].startswith("ok: 3 queued, ")


@pytest.mark.parametrize("verb", [["services"], ["workers"], ["check"], ["dlq", "ls"]])
def test_no_broker_is_69(programs: Programs, verb: list[str]) -> None:
    ended = programs.run("mdp", *verb, "--broker", "ipc://nobody.sock", "--timeout", "0.05", "--attempts", "1")
    assert (ended.code, ended.out) == (69, b"")
    assert ended.unreached_s >= 0.1  # 0.05 s rounded up, and what a busy machine adds


# --------------------------------------------------------------------------------------------------------------------------- dead letters


def test_b7_a_dead_letter_is_listed_shown_and_dropped(operator: Operator) -> None:
    number = operator.bury()
    heading, row = operator.ask("dlq", "ls").lines
    assert heading.split() == ["ID", "SERVICE", "BYTES", "AGE", "LOST"]
    assert row.split()[:2] == [str(number), "deadly"]
    shown = operator.ask("dlq", "show", str(number)).lines
    assert shown[:2] == [f"id       {number}", "service  deadly"]
    assert shown[-2:] == ["frame    die", "frame    \\x1b[2J"]
    as_json = json.loads(operator.ask("dlq", "show", "--json", str(number)).out)
    assert (as_json["id"], as_json["frames"]) == (number, ["die", "\x1b[2J"])
    assert len(as_json["lost"]) == 1
    assert operator.ask("dlq", "drop", str(number)).lines == [f"dropped {number}"]
    for action in ("show", "drop", "retry"):
        for absent in (number, 2**64 - 1):
            gone = operator.ask("dlq", action, str(absent))
            assert (gone.code, gone.complaint) == (1, f"mdp: {absent}: the broker has no such dead letter")


def test_b7_a_dead_letter_is_kept_until_a_worker_can_take_it_and_then_answered(operator: Operator) -> None:
    number = operator.bury()
    early = operator.ask("dlq", "retry", str(number))
    assert (early.code, early.complaint) == (1, f"mdp: {number}: no worker offers its service now, the dead letter is kept")
    (operator.programs.folder / "healed").touch()
    operator.worker("deadly", "--handler", "shop:deadly")
    assert operator.ask("dlq", "retry", "--json", str(number)).out == json.dumps(
        {"id": number, "frames": ["survived", "die", "\x1b[2J"]}
    ).encode() + (b"\n")
    assert json.loads(operator.ask("dlq", "ls", "--json").out) == {"letters": [], "complete": True}


def test_a_reply_that_looks_like_a_refusal_of_the_broker_is_the_reply(operator: Operator) -> None:
    number = operator.bury("not_found")
    (operator.programs.folder / "healed").touch()
    operator.worker("deadly", "--handler", "shop:not_found")
    ended = operator.ask("dlq", "retry", str(number))
    assert (ended.code, ended.lines) == (0, ["404"])


def test_dead_letters_of_a_broker_that_may_not_be_managed_are_only_listed(programs: Programs) -> None:
    operator = Operator(programs)
    assert operator.ask("dlq", "ls").code == 0
    refused = operator.ask("dlq", "drop", "1")
    assert (refused.code, refused.complaint) == (1, "mdp: ipc://b.sock does not offer mmi.dlq.drop; it must be started with --manage")


@pytest.mark.parametrize("arguments", [[], ["ls", "1"], ["show"], ["drop", "x"], ["drop", "-1"], ["bury", "1"]])
def test_wrong_use_of_dlq_is_2(programs: Programs, arguments: list[str]) -> None:
    ended = programs.run("mdp", "dlq", *arguments)
    assert (ended.code, ended.out) == (2, b"")


# ------------------------------------------------------------------------------------------------------------------- brokers of others


async def asked(programs: Programs, answer: list[bytes], *arguments: str) -> Ended:
    """Return how a command ended that was answered like this by a broker of MDP/0.1."""
    return await asked_more(programs, [answer], *arguments)


async def asked_more(programs: Programs, answers: list[list[bytes]], *arguments: str) -> Ended:
    """Return how a command ended whose questions were answered in this order."""
    async with StandIn(protocol=b"501") as broker:
        ending = asyncio.create_task(asyncio.to_thread(programs.run, "mdp", *arguments, MDP_BROKER=broker.endpoint))
        for answer in answers:
            peer, frames = await broker.next()
            broker.send(peer, *frames[:3], *answer)
        return await ending


async def test_a_retry_whose_shard_became_silent_is_a_failure(programs: Programs) -> None:
    ended = await asked_more(programs, [[b"200", b"{}", b"x"], [b"504", b"", b"[1]"]], "dlq", "retry", "7")
    assert (ended.code, ended.out) == (1, b"")
    assert ended.complaint == "mdp: shard 1 does not answer: it is unknown whether what was asked about is there"


async def test_a_broker_of_rfc_8_alone_offers_no_lists(programs: Programs) -> None:
    """MMI-04."""
    ended = await asked(programs, [b"501"], "services")
    assert ended.code == 1
    assert ended.complaint.endswith("does not offer mmi.services")


async def test_a_broker_of_rfc_8_alone_passes_the_check(programs: Programs) -> None:
    ended = await asked(programs, [b"501"], "check")
    assert ended.code == 0
    assert ended.lines[0].startswith("ok: tcp://127.0.0.1:")


async def test_a_broker_that_is_connected_and_silent_is_69_for_the_check(programs: Programs) -> None:
    async with StandIn(protocol=b"501") as broker:
        check = ("mdp", "check", "--broker", broker.endpoint, "--timeout", "1", "--attempts", "1")
        ended = await asyncio.to_thread(programs.run, *check)
    assert (ended.code, ended.out) == (69, b"")
    # The command says how long it has waited, which is longer where it did not run meanwhile.
    assert re.match(rf"mdp: {broker.endpoint} is connected, but gave no answer within \d+\.\d s", ended.complaint)


@pytest.mark.parametrize(
    "answer",
    [[b"200"], [b"200", b"\xff"], [b"200", b"{}"], [b"200", b"[" * 100_000], [b"200", b"9" * 5000], [b"\x1b\xff"]],
)
async def test_nonsense_of_a_broker_is_a_failure_with_one_line(programs: Programs, answer: list[bytes]) -> None:
    ended = await asked(programs, answer, "services")
    assert (ended.code, ended.out) == (1, b"")
    assert ended.complaint.isprintable()


async def test_what_a_broker_lists_cannot_act_on_a_terminal(programs: Programs) -> None:
    rows = [{"service": "\x1b]0;x\x07", "id": None, "silent_ms": 10**400, "version": ["\u202e"], "metadata": {"\n": 1}}, 7, {}]
    ended = await asked(programs, [b"200", json.dumps(rows).encode()], "workers")
    assert ended.code == 0
    assert len(ended.lines) == 3
    assert all(line.isprintable() for line in ended.lines)
