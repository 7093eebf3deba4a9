"""examples/guide: every program prints what its chapter prints."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.scenes.programs import ROOT, Program, Programs

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = ROOT / "examples" / "guide"
LINE = "-" * 40
# Programs of the same folder that `test_peering.py` runs.
PEERING = {"peering1", "peering2", "peering3"}
RUN: set[str] = set()


class Guide(Programs):
    """Starts programs of the guide by name."""

    def guide(self, name: str, *arguments: str) -> Program:
        RUN.add(name)
        return self.start(f"examples.guide.{name}", *arguments)

    def lines(self, name: str, *arguments: str) -> list[str]:
        """Run one to its end and return what it printed."""
        ended = self.guide(name, *arguments).end()
        assert (ended.code, ended.err) == (0, "")
        return ended.lines


def printed(program: Program, word: str) -> list[str]:
    """Return the lines a program prints, up to one with a word in it.

    The test's time limit is the only other way out.
    """
    assert program.process.stdout is not None
    lines = []
    for octets in program.process.stdout:
        lines.append(octets.decode().rstrip("\n"))
        if word in lines[-1]:
            return lines
    raise AssertionError(f"the program ended without printing {word!r}: {lines}")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Guide]:
    running = Guide(tmp_path)
    yield running
    running.close()


def test_identity(run: Guide) -> None:
    first, generated, *rest = run.lines("identity")
    assert first == LINE
    assert re.fullmatch(r"\[005\] 00[0-9A-F]{8}", generated)
    assert rest == [
        "[000]",
        "[026] XREP uses a generated UUID",
        LINE,
        "[005] Hello",
        "[000]",
        "[038] XREP socket uses REQ's socket identity",
    ]


def test_rtdealer(run: Guide) -> None:
    lines = sorted(run.lines("rtdealer", "300"))
    received = {line[0]: int(line.removeprefix(f"{line[0]} received: ")) for line in lines}
    assert sum(received.values()) == 300
    assert received["A"] > received["B"]


def test_rtmama(run: Guide) -> None:
    lines = run.lines("rtmama", "100")
    assert sum(int(line.removeprefix("Processed: ").removesuffix(" tasks")) for line in lines) == 100
    assert len(lines) == 10


def test_rtpapa(run: Guide) -> None:
    addresses = ["[001] A", "[009] address 3", "[009] address 2", "[009] address 1", "[000]"]
    assert run.lines("rtpapa") == [LINE, "[020] This is the workload", LINE, *addresses, "[017] This is the reply"]


def test_rtrouter(run: Guide) -> None:
    to_worker, to_server = ["[006] SERVER", "[000]", "[014] send to worker"], ["[006] WORKER", "[000]", "[014] send to server"]
    assert run.lines("rtrouter") == [LINE, *to_worker, LINE, *to_server]


def test_lruqueue(run: Guide) -> None:
    assert sorted(run.lines("lruqueue")) == ["Client: OK"] * 10 + ["Worker: HELLO"] * 10


def test_asyncsrv(run: Guide) -> None:
    lines = run.lines("asyncsrv", "20", "0.02")
    replies = [re.fullmatch(r"Client ([0-9A-F]{4}-[0-9A-F]{4}): request #(\d+)", line) for line in lines]
    assert all(replies)
    seen = {(reply[1], reply[2]) for reply in replies if reply}
    assert len({client for client, _ in seen}) == 3
    assert len(lines) > len(seen)  # more than one reply to some requests
    assert len(seen) < 60  # and none to others


def test_tripping(run: Guide) -> None:
    setting_up, synchronous, slow, asynchronous, fast = run.lines("tripping", "1000")
    assert (setting_up, synchronous, asynchronous) == (
        "Setting up test...",
        "Synchronous round-trip test...",
        "Asynchronous round-trip test...",
    )
    assert int(fast.removesuffix(" calls/second")) > int(slow.removesuffix(" calls/second"))


def test_lpclient_and_a_server_that_misbehaves(run: Guide) -> None:
    """With this seed the fourth request is too late and the fifth is the last one answered."""
    server = run.guide("lpserver", "ipc://s", "misbehave", "3")
    while not (run.folder / "s").exists():
        time.sleep(0.01)  # it says nothing before the first request
    client = run.guide("lpclient", "ipc://s", "0", "1.5").end()  # the server stalls for two seconds
    assert client.code == 0
    replies = [line for line in client.lines if "replied" in line]
    assert replies == [f"I: server replied OK ({number})" for number in range(1, len(replies) + 1)]
    assert len(replies) >= 3
    assert client.lines[0] == "I: connecting to server..."
    # The second and the third attempt wait for the same connection.
    assert client.lines[-3:] == ["W: no response from server, retrying..."] * 2 + ["E: server seems to be offline, abandoning"]
    said = server.end()
    assert (said.code, said.lines[:3], said.lines[-1]) == (
        0,
        [f"I: normal request ({number})" for number in (1, 2, 3)],
        "I: simulating a crash",
    )


@pytest.mark.parametrize("kind", ["sp", "pp"])
def test_pirate_queue_worker_and_client_in_any_order(run: Guide, kind: str) -> None:
    """LRU-07."""
    worker = run.guide(f"{kind}worker", "ipc://b")
    client = run.guide("lpclient", "ipc://f", "5", "10")
    queue = run.guide(f"{kind}queue", "ipc://f", "ipc://b")
    assert "queue at ipc://f for clients, at ipc://b for workers" in printed(queue, "queue at")[-1]
    assert client.end().lines[-5:] == [f"I: server replied OK ({number})" for number in range(1, 6)]
    assert printed(worker, "normal reply") == ["I: worker ready", "I: normal reply"]


@pytest.mark.parametrize("kind", ["sp", "pp"])
def test_pirates_crash_one_by_one_and_the_client_gives_up_in_the_end(run: Guide, kind: str) -> None:
    """With these seeds the fourth request of each worker is its last."""
    printed(run.guide(f"{kind}queue", "ipc://f", "ipc://b"), "queue at")
    workers = [run.guide(f"{kind}worker", "ipc://b", "misbehave", seed) for seed in ("14", "15")]
    for worker in workers:
        printed(worker, "worker ready")
    client = run.guide("lpclient", "ipc://f", "0", "2.0").end()
    replies = [line for line in client.lines if "replied" in line]
    assert replies == [f"I: server replied OK ({number})" for number in range(1, len(replies) + 1)]
    assert client.lines[-1] == "E: server seems to be offline, abandoning"
    assert len(replies) == 6
    assert [worker.end().lines[-1] for worker in workers] == ["I: simulating a crash"] * 2


def test_majordomo(run: Guide) -> None:
    assert "active at ipc://m" in printed(run.guide("mdbroker", "ipc://m"), "active")[-1]
    assert run.lines("mmiecho", "ipc://m") == ["Lookup echo service: 404"]
    run.guide("mdworker", "ipc://m")
    while run.lines("mmiecho", "ipc://m") != ["Lookup echo service: 200"]:
        pass  # it is on its way
    assert run.lines("mdclient", "ipc://m", "200") == ["200 requests/replies processed"]


def test_titanic(run: Guide) -> None:
    printed(run.guide("mdbroker", "ipc://m"), "active")
    assert "stores in disk" in printed(run.guide("titanic", "ipc://m", "disk"), "stores")[-1]
    run.guide("mdworker", "ipc://m")
    uuid, reply = run.lines("ticlient", "ipc://m")
    assert re.fullmatch(r"I: request UUID [0-9A-F]{32}", uuid)
    assert reply == "Reply: Hello world"


def test_binary_star(run: Guide) -> None:
    ends = {"-p": ("ipc://p.state", "ipc://b.state", "ipc://p.front"), "-b": ("ipc://b.state", "ipc://p.state", "ipc://b.front")}
    primary, backup = (run.guide("bstarsrv", which, *ends[which]) for which in ends)
    assert printed(primary, "ready as")[0] == "I: Primary, waiting for backup (slave)"
    assert printed(backup, "ready as")[-1] == "I: ready as slave"
    client = run.guide("bstarcli", "ipc://p.front", "ipc://b.front", "0", "0.05")
    first, *lines = printed(client, "(3)")
    assert first == "I: connecting to server at ipc://p.front..."
    assert [line for line in lines if "replied" in line] == [f"I: server replied OK ({number})" for number in (1, 2, 3)]
    primary.kill()
    assert "I: connecting to server at ipc://b.front..." in printed(client, "b.front")
    assert printed(backup, "master")[-1] == "I: ready as master"
    assert printed(client, "replied")
    assert run.lines("bstarsrv") == ["Usage: bstarsrv { -p | -b }"]


@pytest.mark.parametrize("model", ["1", "2", "3"])
def test_freelance(run: Guide, model: str) -> None:
    for name in ("a", "b"):
        assert f"ready at ipc://{name}" in printed(run.guide(f"flserver{model}", f"ipc://{name}"), "ready")[-1]
    arguments = [*([] if model == "1" else ["50"]), "ipc://a", "ipc://b", "ipc://nobody"]
    (line,) = run.lines(f"flclient{model}", *arguments)
    assert re.fullmatch(r"Service is running OK" if model == "1" else r"Average round trip cost: \d+ usec", line)


@pytest.mark.parametrize(
    ("model", "lines"),
    [
        ("1", ["W: no response from ipc://nobody", "W: no response from ipc://nobody2", "E: no server answered, abandoning"]),
        ("2", ["E: name service not available, aborting"]),
        ("3", ["E: name service not available, aborting"]),
    ],
)
def test_freelance_without_a_server(run: Guide, model: str, lines: list[str]) -> None:
    arguments = [*([] if model == "1" else ["1"]), "ipc://nobody", "ipc://nobody2"]
    assert run.lines(f"flclient{model}", *arguments) == lines


def test_every_program_has_its_row_and_its_test() -> None:
    """The table of the README names every program there is, and this file or `test_peering.py` runs each of them."""
    programs = {path.stem for path in FOLDER.glob("*.py")} - {"zhelpers", "__init__"}
    rows = set(re.findall(r"^\| `(\w+)` \|", (FOLDER / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert rows == programs
    peering = Path(__file__).with_name("test_peering.py").read_text(encoding="utf-8")
    assert all(f'"{name}.py"' in peering for name in PEERING)
    source = Path(__file__).read_text(encoding="utf-8")
    for name in programs - PEERING:
        family = re.sub(r"^(sp|pp)(queue|worker)$", r"{kind}\2", re.sub(r"^(fl\w+)\d$", r"\1{model}", name))
        assert f'"{family}"' in source, name


def test_programs_end_quietly_on_ctrl_c(tmp_path: Path) -> None:
    server = subprocess.Popen(
        [sys.executable, "-m", "examples.guide.spqueue", "ipc://f", "ipc://b"],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert server.stdout is not None
    assert server.stdout.readline()
    server.send_signal(signal.SIGINT)
    assert server.communicate()[0] == b""
    assert server.returncode == 0
