"""mdp.commands.main: output and exit code of each command, in separate processes."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.scenes.programs import Programs

pytestmark = pytest.mark.timeout(240)  # many processes, on a machine that may be busy

HANDLERS = """
import asyncio, logging
import mdp

@mdp.service("double", concurrency=2)
async def double(request):
    return [*request.body, *request.body]

@mdp.service("shout")
async def shout(request):
    return request.body[0].upper()

@mdp.service("shown")
async def shown(request):
    request.progress(0.5, "half")
    return [f"{name} {text}".encode() for name, text in request.headers.items()] or [b"none"]

async def slow(request):
    logging.warning("working")
    await asyncio.sleep(float(request.body[0]))
    return b"done"
"""

TWINS = """
import core, mdp

contexts = []

class Counted(core.Context):
    def __init__(self, *arguments, **options):
        contexts.append(self)
        super().__init__(*arguments, **options)

core.Context = Counted
made = mdp.App()

@made.service("first")
@mdp.service("first")
async def first(request):
    return b"%d" % len(contexts)

@made.service("second")
@mdp.service("second")
async def second(request):
    return await first(request)
"""


@pytest.fixture(autouse=True)
def shop(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(HANDLERS)


@pytest.fixture
def broker(programs: Programs) -> str:
    """Return the endpoint of a running broker."""
    programs.start("mdp", "broker", "--bind", "ipc://broker.sock").said("broker serves")
    return "ipc://broker.sock"


def worker(programs: Programs, broker: str, *arguments: str) -> None:
    programs.start("mdp", "worker", "--broker", broker, *arguments).said("registered")


def known_worker(programs: Programs, broker: str, service: str) -> None:
    """Start a worker that its broker knows: it says that it is registered before what it has written has left."""
    worker(programs, broker, "--service", service)
    while programs.run("mdp", "mmi", "--broker", broker, "service", service).lines != ["200"]:
        pass


def test_call_prints_reply_frames_one_a_line(programs: Programs, broker: str) -> None:
    worker(programs, broker, "--service", "echo")
    call = ("mdp", "call", "--broker", broker)
    ended = programs.run(*call, "echo", "hello", "", "wörld")
    assert (ended.code, ended.out.decode(), ended.err) == (0, "hello\n\nwörld\n", "")
    assert programs.run(*call, "echo", "-", given=b"\xff\x00\n").out == b"\xff\x00\n\n"
    assert programs.run(*call, "echo").out == b"\n"
    as_json = programs.run(*call, "--json", "echo", "a", "-", given=b"\xff")
    assert json.loads(as_json.out) == {"service": "echo", "frames": ["a", {"base64": "/w=="}]}


def test_call_finds_its_broker_in_the_environment(programs: Programs, broker: str) -> None:
    worker(programs, broker, "--service", "echo")
    assert programs.run("mdp", "call", "echo", "x", MDP_BROKER=broker).lines == ["x"]
    assert programs.run("mdp", "call", "echo", "x", MDP_CALL_BROKER=broker, MDP_BROKER="ipc://nobody").lines == ["x"]


def test_failed_request_is_1_with_its_reason_in_one_line(programs: Programs, broker: str) -> None:
    worker(programs, broker, "--service", "fail")
    call = ("mdp", "call", "--broker", broker)
    failed = programs.run(*call, "fail", "no such customer")
    assert (failed.code, failed.out) == (1, b"")
    assert "HANDLER_ERROR" in failed.complaint
    unknown = programs.run(*call, "--timeout", "100", "nobody", "x")
    assert unknown.code == 1
    assert unknown.complaint.startswith("mdp: nobody: no worker offers this service")
    late = programs.run(*call, "--deadline", "0.05", "--wait", "nobody", "x")
    assert late.code == 1
    assert "deadline" in late.complaint.lower()


def test_no_broker_is_69_after_the_timeout_with_one_line(programs: Programs) -> None:
    for command in (["call", "echo", "x"], ["mmi", "service", "echo"], ["bench"]):
        ended = programs.run("mdp", *command, "--broker", "ipc://nobody.sock", "--timeout", "0.05", "--attempts", "2")
        assert (ended.code, ended.out) == (69, b"")
        assert ended.unreached_s >= 0.1  # two attempts of 0.05 s, and what a busy machine adds


def test_no_broker_is_said_long_before_the_time_is_over(programs: Programs) -> None:
    asking = programs.start("mdp", "call", "--broker", "ipc://nobody.sock", "--timeout", "30", "echo", "x")
    assert "cannot reach the broker at ipc://nobody.sock: " in asking.said("cannot reach")
    assert asking.process.poll() is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["call"],
        ["call", "bad\nname"],
        ["call", "--broker", "nowhere", "echo"],
        ["call", "--deadline", "86401", "echo"],
        ["call", "--key", "", "echo"],
        ["call", "--key", "k" * 256, "echo"],
        ["mmi"],
        ["nonsense"],
    ],
)
def test_wrong_use_is_2(programs: Programs, arguments: list[str]) -> None:
    ended = programs.run("mdp", *arguments)
    assert (ended.code, ended.out) == (2, b"")


def test_interrupted_call_is_130(programs: Programs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        call = programs.start("mdp", "call", "--broker", f"tcp://127.0.0.1:{silent.getsockname()[1]}", "--timeout", "50", "echo")
        silent.accept()[0].close()  # it is on the loop now, and would wait
        ended = call.signal(signal.SIGINT).end()
    assert ended.code == 130
    assert "Traceback" not in ended.err


def test_mmi_prints_the_code(programs: Programs, broker: str) -> None:
    known_worker(programs, broker, "echo")
    mmi = ("mdp", "mmi", "--broker", broker)
    assert programs.run(*mmi, "service", "echo").lines == ["200"]
    assert programs.run(*mmi, "mmi.service", "nobody").lines == ["404"]
    assert programs.run(*mmi, "nonsense").lines == ["501"]
    answer = json.loads(programs.run(*mmi, "--json", "services").out)
    assert answer["code"] == "200"
    assert "echo" in answer["data"][0]


def test_bench_counts_and_measures(programs: Programs, broker: str) -> None:
    known_worker(programs, broker, "echo")
    bench = ("mdp", "bench", "--broker", broker, "--requests", "500", "--window", "50")
    figures = json.loads(programs.run(*bench, "--json").out)
    assert {name: figures[name] for name in ("requests", "replies", "lost", "errors", "window", "size", "dialect")} == {
        "requests": 500,
        "replies": 500,
        "lost": 0,
        "errors": {},
        "window": 50,
        "size": 16,
        "dialect": "0.3",
    }
    assert 0 < figures["p50_ms"] <= figures["p99_ms"] <= figures["p999_ms"]
    text = programs.run(*bench, "--size", "1000").lines
    assert text[0] == "service echo: 500 requests of 1,000 bytes, 50 in flight, MDP/0.3"
    assert text[-1] == "lost    0"


def test_call_sends_headers_and_a_priority(programs: Programs, broker: str) -> None:
    worker(programs, broker, "--app", "shop")
    call = ("mdp", "call", "--wait", "--broker", broker, "shown")
    assert programs.run(*call, "--header", "tenant=zh", "--header", "text=a=b", "--priority", "high").lines == ["tenant zh", "text a=b"]
    assert programs.run(*call, "--progress").err.splitlines() == ["50% half"]
    assert "a header is NAME=TEXT" in programs.run(*call, "--header", "tenant").err
    assert "headers have an empty name" in programs.run(*call, "--header", "=zh").err
    assert programs.run(*call, "--priority", "urgent").code == 2


def test_bench_with_losses_is_1(programs: Programs, broker: str) -> None:
    known_worker(programs, broker, "fail")
    bench = ("mdp", "bench", "--broker", broker, "--requests", "20")
    lossy = programs.run(*bench, "--service", "fail")
    assert lossy.code == 1
    assert lossy.lines[-1] == "lost    20 (HANDLER_ERROR 20)"
    assert "20 of 20 requests were lost" in lossy.complaint
    assert programs.run(*bench, "--service", "nobody").complaint == "mdp: nobody: nothing to measure, the broker answers 404"


def test_worker_serves_the_services_it_is_given(programs: Programs, broker: str) -> None:
    worker(programs, broker, "--app", "shop")
    worker(programs, broker, "--service", "sleepy", "--handler", "sleep")
    worker(programs, broker, "--service", "slow", "--handler", "shop:slow")
    call = ("mdp", "call", "--wait", "--broker", broker)
    assert programs.run(*call, "double", "a").lines == ["a", "a"]
    assert programs.run(*call, "shout", "a").lines == ["A"]
    assert programs.run(*call, "sleepy", "0").lines == ["0"]
    assert programs.run(*call, "slow", "0").lines == ["done"]


@pytest.mark.parametrize("app", ["module", "module:app"])
def test_the_services_of_an_app_share_one_context(programs: Programs, broker: str, tmp_path: Path, app: str) -> None:
    (tmp_path / "module.py").write_text(TWINS.replace("made", "app") if ":" in app else TWINS)
    programs.start("mdp", "worker", "--broker", broker, "--app", app).said("worker serves")
    call = ("mdp", "call", "--wait", "--broker", broker)
    assert [programs.run(*call, name, "").lines for name in ("first", "second")] == [["1"], ["1"]]


@pytest.mark.parametrize(
    "arguments,said",
    [
        ([], "which service?"),
        (["--service", "shop"], "which handler?"),
        (["--service", "shop", "--handler", "nonsense"], "neither one of"),
        (["--service", "shop", "--handler", "shop:nothing"], "shop has no nothing"),
        (["--service", "bad\nname", "--handler", "echo"], "printable"),
        (["--service", "mmi.echo", "--handler", "echo"], "reserved for the broker"),
        (["--app", "shop", "--service", "x"], "--app brings services"),
        (["--app", "json"], "decorates nothing"),
        (["--app", "no_such_app"], "no module no_such_app"),
    ],
)
def test_worker_without_a_handler_is_wrong_use(programs: Programs, arguments: list[str], said: str) -> None:
    ended = programs.run("mdp", "worker", *arguments)
    assert ended.code == 2
    assert said in ended.err


def test_x1_port_in_use_is_69_and_names_the_endpoint(programs: Programs) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        ended = programs.run("mdp", "broker", "--bind", endpoint)
    assert ended.code == 69
    assert endpoint in ended.complaint
    assert "another program listens there" in ended.complaint


def test_x1_a_path_in_a_missing_directory_is_69_with_the_remedy(programs: Programs) -> None:
    ended = programs.run("mdp", "broker", "--bind", "ipc://missing/broker")
    assert ended.code == 69
    assert (
        ended.complaint == "mdp: cannot listen: ipc://missing/broker: No such file or directory; make its directory, or choose another path"
    )


def test_x1_bad_configuration_is_78_with_its_line(programs: Programs) -> None:
    (programs.folder / "mdp.toml").write_text('[broker]\nbind = ["ipc://configured.sock"]\nheartbeat_ms = 0\n')
    ended = programs.run("mdp", "broker", "--config", "mdp.toml")
    assert ended.code == 78
    assert ended.complaint.startswith("mdp: mdp.toml:3: heartbeat_ms: 0.0 is not in the range")
    assert programs.run("mdp", "broker", MDP_BROKER_LIVENESS="three").code == 78


def test_broker_takes_its_options_from_file_and_shows_them(programs: Programs) -> None:
    (programs.folder / "mdp.toml").write_text('[broker]\nbind = ["ipc://configured.sock"]\nheartbeat_ms = 500\n')
    shown = programs.run("mdp", "broker", "--config", "mdp.toml", "--show-config", "--liveness", "5").lines
    assert 'bind = ["ipc://configured.sock"]  # file mdp.toml:2' in shown
    assert "heartbeat_ms = 500.0  # file mdp.toml:3" in shown
    assert "liveness = 5  # flag --liveness" in shown
    broker = programs.start("mdp", "broker", "--config", "mdp.toml")
    assert "ipc://configured.sock" in broker.said("broker serves")
    assert broker.stop().code == 0


@pytest.mark.parametrize("role", ["broker", "worker"])
def test_p3_first_signal_finishes_requests_in_flight(programs: Programs, role: str) -> None:
    broker = programs.start("mdp", "broker", "--bind", "ipc://b.sock", "--log-format", "json")
    broker.said("broker serves")
    worker = programs.start("mdp", "worker", "--broker", "ipc://b.sock", "--service", "slow", "--handler", "shop:slow")
    worker.said("registered")
    call = programs.start("mdp", "call", "--broker", "ipc://b.sock", "slow", "0.3")
    worker.said("working")
    told = broker if role == "broker" else worker
    assert told.signal(signal.SIGTERM).end().code == 0
    ended = call.end()
    assert (ended.code, ended.lines) == (0, ["done"])


@pytest.mark.parametrize("role", ["broker", "worker"])
def test_p3_second_signal_ends_at_once(programs: Programs, role: str) -> None:
    broker = programs.start("mdp", "broker", "--bind", "ipc://b.sock")
    broker.said("broker serves")
    worker = programs.start("mdp", "worker", "--broker", "ipc://b.sock", "--service", "slow", "--handler", "shop:slow")
    worker.said("registered")
    programs.start("mdp", "call", "--broker", "ipc://b.sock", "slow", "40")
    worker.said("working")
    told = broker if role == "broker" else worker
    told.signal(signal.SIGTERM).said("draining")
    assert told.signal(signal.SIGTERM).end().code == 130


def test_drain_time_over_still_exits_0(programs: Programs) -> None:
    broker = programs.start("mdp", "broker", "--bind", "ipc://b.sock", "--drain-s", "0.05")
    broker.said("broker serves")
    worker = programs.start("mdp", "worker", "--broker", "ipc://b.sock", "--service", "slow", "--handler", "shop:slow")
    worker.said("registered")
    call = programs.start("mdp", "call", "--broker", "ipc://b.sock", "--timeout", "40", "slow", "40")
    worker.said("working")
    ended = broker.stop()
    assert ended.code == 0
    assert "running=1" in ended.err
    assert call.end().code == 1


def test_commands_that_need_no_spark_do_not_load_it(programs: Programs) -> None:
    ended = programs.run("mdp", "--help")
    assert ended.code == 0
    assert {"broker", "worker", "call", "mmi", "bench", "dispatch", "demo"} <= {line.split()[0] for line in ended.lines if line.strip()}
    (programs.folder / "look.py").write_text("import sys, mdp.commands.main\nprint('pyspark' in sys.modules, 'click' in sys.modules)\n")
    assert programs.run("look").lines == ["False True"]


def test_a_broker_loads_neither_client_nor_worker_nor_what_their_commands_need() -> None:
    lines = (
        "import asyncio, sys, click",
        "before = set(sys.modules)",  # which includes pathlib from Python 3.15 on
        "from mdp.commands.main import main",
        "main.get_command(click.Context(main), 'broker')",
        "names = 'mdp.broker.broker', 'mdp.client.client', 'mdp.worker.worker', 'mdp.app.app', 'mdp.eventlog.files', 'msgspec', 'pathlib'",
        "print(*(name in sys.modules.keys() - before for name in names))",
    )
    ended = subprocess.run([sys.executable, "-c", "; ".join(lines)], capture_output=True, text=True, check=True)  # nothing imported before
    assert ended.stdout.split() == ["True", *["False"] * 6]
