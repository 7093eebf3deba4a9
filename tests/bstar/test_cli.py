"""bstar.cli: two servers, a witness and their clients as processes, and signals sent to them."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from bstar.machine.ballot import COUNTER_MAX, Record, RecordRole
from bstar.net.ballot_file import BallotFile
from tests.scenes.programs import first_to_end

if TYPE_CHECKING:
    from tests.scenes.programs import Program, Programs

BEAT = ("--heartbeat-ms", "800")  # a pause of a busy machine is no fail-over
CALM = ("--heartbeat-ms", "2000")  # where no silence is waited for: a pause of two heartbeats ends a term
CALL = ("bstar", "call", "--primary", "ipc://p.front", "--backup", "ipc://b.front")
QUICK_CALL = (*CALL, "--settle", "0.2", "--timeout", "0.3")  # to the other server soon; it says so of a connection that was silent


@pytest.fixture
def programs(programs: Programs) -> Programs:
    (programs.folder / "shop.py").write_text(
        "async def shout(request):\n    return [frame.upper() for frame in request.body]\ndef fail(request):\n    raise KeyError(1)\n"
    )
    return programs


def server(programs: Programs, role: str, *more: str) -> Program:
    mine, its = ("p", "b") if role == "primary" else ("b", "p")
    ends = ("--local", f"ipc://{mine}.state", "--remote", f"ipc://{its}.state", "--frontend", f"ipc://{mine}.front")
    program = programs.start("bstar", "run", f"--{role}", *ends, "--control", f"ipc://{mine}.control", *BEAT, *more)
    program.said("server runs")
    return program


def pair(programs: Programs, *more: str) -> tuple[Program, Program]:
    primary, backup = server(programs, "primary", *more), server(programs, "backup", *more)
    primary.said("active")
    backup.said("passive")
    return primary, backup


def who(programs: Programs, body: str = "x") -> str:
    answer = programs.run(*QUICK_CALL, "--json", body)
    assert answer.code == 0, answer.err
    return str(json.loads(answer.out)["server"])


def test_call_prints_the_reply(programs: Programs) -> None:
    pair(programs)
    ended = programs.run(*CALL, "hello", "wörld")
    assert (ended.code, ended.out.decode(), ended.err) == (0, "hello\nwörld\n", "")


def test_handler_by_name(programs: Programs) -> None:
    server(programs, "primary", "--handler", "shop:shout")
    assert programs.run(*CALL, "hello").lines == ["HELLO"]


def test_failing_handler_is_1(programs: Programs) -> None:
    server(programs, "primary", "--handler", "shop:fail")
    ended = programs.run(*CALL, "hello")
    assert (ended.code, ended.complaint) == (1, "bstar: handler failed: KeyError")


@pytest.mark.parametrize("stop", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP], ids=lambda s: s.name)
def test_backup_takes_over_and_keeps_the_role(programs: Programs, stop: signal.Signals) -> None:
    """F1, P2, P3: killed, ended in order, or suspended and resumed."""
    primary, backup = pair(programs)
    assert who(programs) == "primary"
    primary.signal(stop)
    assert who(programs) == "backup"
    backup.said("active")
    if stop is signal.SIGSTOP:
        primary.signal(signal.SIGCONT)
        primary.said("passive")
    else:
        assert primary.end().code == (0 if stop is signal.SIGTERM else -stop)
        server(programs, "primary").said("passive")
    assert who(programs) == "backup"


def test_witness_decides_between_the_two(programs: Programs) -> None:
    """BEY-12: with every line between the servers broken the backup does not serve while the primary does."""
    programs.start("bstar", "witness", "--bind", "ipc://w", *BEAT, "--store", "w.ballot").said("witness runs")
    primary, _ = pair(programs, "--witness", "ipc://w")
    assert who(programs) == "primary"
    status = programs.run("bstar", "status", "--witness", "ipc://w", "--json")
    assert json.loads(status.out)["holder"] != "none"
    primary.signal(signal.SIGKILL)
    assert who(programs) == "backup"
    assert json.loads(programs.run("bstar", "status", "--peer", "ipc://b.state", "--json").out)["guard"] == "witness"


def test_one_witness_serves_several_pairs(programs: Programs) -> None:
    """BEY-12: an endpoint and a file for each; what one pair holds is no matter to the other."""
    binds = ("--bind", "ipc://w", "--store", "w.ballot", "--bind", "ipc://v", "--store", "v.ballot")
    programs.start("bstar", "witness", *binds, *BEAT).said("witness runs")
    for name, where in (("p", "w"), ("q", "v")):
        ends = ("--local", f"ipc://{name}.state", "--remote", f"ipc://{name}.none", "--frontend", f"ipc://{name}.front")
        programs.start("bstar", "run", "--primary", *ends, "--witness", f"ipc://{where}", *BEAT).said("server runs")
    holders: dict[str, str] = {}
    while len(holders) < 2:  # a server on a busy machine may lose its lease for a moment, and takes it again when it is asked
        for name in "pq":
            fronts = ("--primary", f"ipc://{name}.front", "--backup", f"ipc://{name}.none")
            answer = programs.run("bstar", "call", *fronts, "--settle", "0.2", "x")
            assert (answer.code, answer.out) == (0, b"x\n")
        seen = programs.run("bstar", "status", "--witness", "ipc://w", "--witness", "ipc://v", "--json")
        holders |= {where: words["holder"] for where, words in json.loads(seen.out).items() if words["holder"] != "none"}
    assert len(set(holders.values())) == 2
    refused = programs.run("bstar", "witness", "--bind", "ipc://x", "--bind", "ipc://y", "--store", "x.ballot")
    assert (refused.code, "each pair needs a file of its own" in refused.err) == (2, True)


def test_status_and_switchover(programs: Programs) -> None:
    """BST-36, BST-37."""
    primary, backup = pair(programs, *CALM)
    seen = programs.run("bstar", "status", "--peer", "ipc://p.state", "--json")
    assert {"state": "active", "role": "primary", "serving": True, "guard": "fenced"}.items() <= json.loads(seen.out).items()
    words = programs.run("bstar", "status", "--control", "ipc://b.control").lines
    assert {"state: passive", "serving: false", "guard: fenced"} <= set(words)
    refused = programs.run("bstar", "switchover", "--control", "ipc://b.control")
    assert (refused.code, refused.complaint) == (1, "bstar: not the active server; primary is active")
    done = programs.run("bstar", "switchover", "--control", "ipc://p.control", "--json")
    assert json.loads(done.out)["state"] == "passive"
    primary.said("passive")
    backup.said("active")
    assert who(programs) == "backup"


def test_status_of_both_members_and_the_witness_at_once(programs: Programs) -> None:
    """Ballot, lease, age of the peer, and whether the pair is safe; a server that does not answer is named."""
    programs.start("bstar", "witness", "--bind", "ipc://w", *CALM).said("witness runs")
    _, backup = pair(programs, "--witness", "ipc://w", *CALM)
    who(programs)
    controls = ("--control", "ipc://p.control", "--control", "ipc://b.control", "--witness", "ipc://w")
    seen = json.loads(programs.run("bstar", "status", *controls, "--json").out)
    primary = seen["ipc://p.control"]
    assert primary["safe"] is True
    assert primary["ballot"] == seen["ipc://w"]["holder"] != "none"
    assert 0 < primary["lease_left_s"] <= 4
    assert primary["peer"]["age_s"] >= 0
    assert primary["witness_age_s"] >= 0
    assert [change["event"] for change in primary["changes"]] == ["active"]
    assert seen["ipc://b.control"]["lease_left_s"] == 0
    backup.signal(signal.SIGKILL).end()
    ended = programs.run("bstar", "status", *controls, "--timeout", "4")
    assert (ended.code, ended.complaint) == (69, "bstar: no answer from ipc://b.control")
    assert {"[ipc://p.control]", "state: active", "safe: true"} <= set(ended.lines)
    (absent,) = (line for line in ended.lines if line.startswith("error: "))
    assert absent.startswith("error: nothing heard from ipc://b.control within 4 s: ")


def test_no_server_is_69(programs: Programs) -> None:
    ended = programs.run(*QUICK_CALL, "--patience", "1", "x")
    assert ended.code == 69
    assert ended.complaint.startswith("bstar: no active server after 1.0")
    assert ended.complaint.count(" ([Errno 2] No such file or directory)") == 2, "one of each server"
    for where in ("--peer", "--control", "--witness"):
        ended = programs.run("bstar", "status", where, "ipc://nobody", "--timeout", "0.05")
        assert ended.code == 69
        assert ended.complaint.startswith("bstar: nothing heard from ipc://nobody within 0.05 s: ")
        assert ended.complaint.endswith("No such file or directory")


def test_two_primaries_are_78_with_the_remedy(programs: Programs) -> None:
    """F3, BST-08."""
    first = programs.start(
        "bstar", "run", "--primary", "--local", "ipc://a", "--remote", "ipc://b", "--frontend", "ipc://c", *BEAT, "--log-level", "error"
    )
    second = programs.start(
        "bstar", "run", "--primary", "--local", "ipc://b", "--remote", "ipc://a", "--frontend", "ipc://d", *BEAT, "--log-level", "error"
    )
    # The server that hears the other stops; the first to stop may not be heard by the one that is left, which then is the only one.
    ended = first_to_end(first, second).end()
    assert ended.code == 78
    assert "bstar: both servers are configured as primary: start one of them as backup" in ended.err


@pytest.mark.parametrize(
    "content, code, words",
    [
        (b"garbage", 74, "a.ballot: ballot file has 7 bytes instead of 38"),
        (None, 78, "in use by process"),
        (Path.mkdir, 74, "a.ballot: Is a directory"),
        (os.mkfifo, 74, "a.ballot: ballot file has 0 bytes"),
    ],
)
def test_ballot_file_that_cannot_be_used(programs: Programs, tmp_path: Path, content: Any, code: int, words: str) -> None:
    path = tmp_path / "a.ballot"
    start = ("bstar", "run", "--primary", "--local", "ipc://a", "--remote", "ipc://b", "--frontend", "ipc://c", "--store", str(path))
    with BallotFile(path, RecordRole.SERVER) as store:
        store.save(Record(RecordRole.SERVER, 1, 1, 1))
        if content is not None:
            store.close()
            path.unlink()
            path.write_bytes(content) if isinstance(content, bytes) else content(path)
        ended = programs.run(*start)
    assert ended.code == code
    assert words in ended.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--local", "ipc://a", "--remote", "ipc://b", "--frontend", "ipc://c"],
        ["run", "--primary", "--local", "ipc://a", "--remote", "ipc://b", "--frontend", "ipc://c", "--handler", "nowhere:at_all"],
        ["run", "--primary", "--local", "ipc://a", "--remote", "ipc://b", "--frontend", "ipc://c", "--compatible", "--store", "x"],
        ["run", "--primary", "--local", "ipc://a", "--remote", "ipc://b", "--frontend", "ipc://c", "--heartbeat-ms", "30001"],
        ["status"],
        ["call", "--primary", "ipc://a", "x"],
        ["switchover"],
    ],
    ids=" ".join,
)
def test_wrong_use_is_2(programs: Programs, arguments: list[str]) -> None:
    ended = programs.run("bstar", *arguments)
    assert (ended.code, ended.out) == (2, b"")


def test_taken_endpoint_is_69(programs: Programs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        local = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        ended = programs.run("bstar", "run", "--backup", "--local", local, "--remote", "ipc://x", "--frontend", "ipc://y")
    assert ended.code == 69
    assert f"{local} is in use" in ended.err


def test_stopped_daemons_end_with_0(programs: Programs) -> None:
    """P3."""
    witness = programs.start("bstar", "witness", "--bind", "ipc://w", *BEAT)
    witness.said("witness runs")
    primary, backup = pair(programs, "--witness", "ipc://w")
    assert [program.stop().code for program in (backup, primary, witness)] == [0, 0, 0]


# --- the ballot file -----------------------------------------------------------------------------------------------------------


def test_full_disk_delays_a_fail_over_and_ends_no_server(programs: Programs) -> None:
    """BST-27: the backup cannot write its ballot when it is needed.

    It says so, stays, and takes over when it can.
    """
    backup = server_named(programs, "b.ballot")
    soft, hard = resource.prlimit(backup.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    asking = programs.start(*QUICK_CALL, "--patience", "60", "x")
    assert "File too large" in backup.said("cannot be written")
    status = json.loads(programs.run("bstar", "status", "--control", "ipc://c.control", "--json").out)
    assert (status["state"], status["trouble"]) == ("primary", "the ballot file cannot be written: File too large")
    resource.prlimit(backup.process.pid, resource.RLIMIT_FSIZE, (soft, hard))
    backup.said("can be written again")
    assert asking.end().code == 0
    assert backup.stop().code == 0


def test_ballot_files_can_be_looked_at_and_begun_anew(programs: Programs) -> None:
    """The way out where no counter is left, or a file is damaged beyond its second copy."""
    for owner in (RecordRole.SERVER, RecordRole.WITNESS):
        path = str(programs.folder / owner.name)
        with BallotFile(path, owner) as store:
            store.save(Record(owner, 0xAB, 4, COUNTER_MAX))
            shown = json.loads(programs.run("bstar", "ballot", "show", path, "--json").out)
            assert (shown["owner"], shown["incarnation"], shown["copies"], shown["left"]) == (owner.name.lower(), 4, 2, 0)
            assert programs.run("bstar", "ballot", "reset", path, "--yes").code == 78  # in use
        refused = programs.run("bstar", "ballot", "reset", path)
        assert refused.code == 2
        assert "stop both servers and the witness" in refused.err
        assert programs.run("bstar", "ballot", "reset", path, "--yes", "--counter", "40").code == 0
        with BallotFile(path, owner) as store:
            found = store.load()
            assert found is not None
            assert (found.counter, found.node != 0xAB) == (40, True)
    path = str(programs.folder / "damaged")
    Path(path).write_bytes(bytes(8192))
    ended = programs.run("bstar", "ballot", "show", path)
    assert (ended.code, "no copy in the ballot file is whole" in ended.complaint) == (74, True)
    assert programs.run("bstar", "ballot", "reset", path, "--yes", "--owner", "server").code == 0
    assert programs.run("bstar", "ballot", "show", path).lines[2] == "counter: 0"
    assert programs.run("bstar", "ballot", "show", path + "?").code == 74


def server_named(programs: Programs, store: str) -> Program:
    program = programs.start(
        "bstar", "run", "--primary", "--local", "ipc://c.state", "--remote", "ipc://d.state", "--frontend", "ipc://p.front",
        "--control", "ipc://c.control", "--store", store, *BEAT,
    )  # fmt: skip
    program.said("server runs")
    return program
