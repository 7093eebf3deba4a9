"""core.cli: `zmtp` as its users see it."""

from __future__ import annotations

import asyncio
import json
import signal
import stat
from typing import TYPE_CHECKING

import pytest

import core.cli
from core.cli import ProxyOptions, serve_proxy
from core.daemon.exit_codes import RequestFailed
from core.security.curve_keys import public_key
from core.zmtp import z85
from tests.scenes.lifetime import TestLifetime

if TYPE_CHECKING:
    from tests.scenes.programs import Programs


def test_what_is_sent_is_received(programs: Programs) -> None:
    receiver = programs.start("core", "recv", "--bind", "ipc://x.sock", "--count", "2")
    send = ("core", "send", "--connect", "ipc://x.sock")
    assert programs.run(*send, "hello", "wörld").code == 0
    assert programs.run(*send, "-", given=b"\xff\n").code == 0
    ended = receiver.end()
    assert (ended.code, ended.out, ended.err) == (0, "hello\nwörld\n".encode() + b"\xff\n\n", "")


def test_json_keeps_messages_apart(programs: Programs) -> None:
    receiver = programs.start("core", "recv", "--bind", "ipc://x.sock", "--count", "1", "--json")
    assert programs.run("core", "send", "--connect", "ipc://x.sock", "a", "").code == 0
    assert json.loads(receiver.end().out) == ["a", ""]


def test_sub_receives_what_it_subscribed_to(programs: Programs) -> None:
    receiver = programs.start("core", "recv", "--type", "sub", "--bind", "ipc://x.sock", "--topic", "b", "--count", "1")
    pub = ("core", "send", "--type", "pub", "--connect", "ipc://x.sock")
    unwanted = programs.run(*pub, "--timeout", "0.3", "a")
    assert (unwanted.code, unwanted.out) == (69, b"")
    assert programs.run(*pub, "b1").code == 0
    assert receiver.end().lines == ["b1"]


REPLIER = """
import core

async def answer():
    async with core.Context() as context:
        socket = context.socket(core.REP)
        socket.bind("ipc://x.sock")
        await socket.send_multipart([b"got", *await socket.recv_multipart()])

core.run(answer())
"""


def test_a_request_prints_its_reply(programs: Programs) -> None:
    (programs.folder / "replier.py").write_text(REPLIER)
    replier = programs.start("replier")
    ended = programs.run("core", "send", "--type", "req", "--connect", "ipc://x.sock", "--json", "a", "b")
    assert (ended.code, json.loads(ended.out)) == (0, ["got", "a", "b"])
    assert replier.end().code == 0


def test_a_request_nobody_answers_is_69_and_monitor_shows_it_came(programs: Programs) -> None:
    monitor = programs.start("core", "monitor", "--type", "rep", "--bind", "ipc://x.sock", "--count", "3", "--json")
    assert monitor.process.stdout is not None
    first = monitor.process.stdout.readline().decode()
    ended = programs.run("core", "send", "--type", "req", "--connect", "ipc://x.sock", "--timeout", "3", "anybody?")
    assert ended.code == 69
    events = [json.loads(line)["event"] for line in (first, *monitor.end().lines)]
    assert events == ["LISTENING", "ACCEPTED", "HANDSHAKE_SUCCEEDED"]


def test_proxy_forwards_between_two_endpoints(programs: Programs) -> None:
    endpoints = ("--frontend", "ipc://front.sock", "--backend", "ipc://back.sock", "--capture", "ipc://copy.sock")
    proxy = programs.start("core", "proxy", "--kind", "streamer", *endpoints)
    proxy.said("proxy forwards")
    sink = programs.start("core", "recv", "--connect", "ipc://back.sock", "--count", "1")
    assert programs.run("core", "send", "--connect", "ipc://front.sock", "a", "b").code == 0
    assert sink.end().lines == ["a", "b"]
    assert proxy.signal(signal.SIGTERM).end().code == 0


async def test_a_proxy_that_fails_ends_its_program(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(*sides: object) -> None:
        raise ZeroDivisionError("by nothing")

    monkeypatch.setattr(core.cli, "proxy", broken)
    options = ProxyOptions("streamer", "tcp://127.0.0.1:*", "tcp://127.0.0.1:*")
    async with asyncio.timeout(60):
        with pytest.raises(RequestFailed, match="the proxy has failed: ZeroDivisionError: by nothing"):
            await serve_proxy(options, TestLifetime())
    assert "the proxy has failed" in caplog.text


def test_monitor_prints_events_until_it_is_stopped(programs: Programs) -> None:
    monitor = programs.start("core", "monitor", "--connect", "ipc://nobody.sock")
    assert monitor.process.stdout is not None
    first = monitor.process.stdout.readline().decode()
    assert first.startswith("CONNECT_DELAYED ipc://nobody.sock")
    assert monitor.signal(signal.SIGTERM).end().code == 0


def test_nobody_to_send_to_is_69(programs: Programs) -> None:
    ended = programs.run("core", "send", "--connect", "ipc://nobody.sock", "--timeout", "0.1", "x")
    assert (ended.code, ended.complaint) == (69, "zmtp: no peer took the message within 0.1 s")


def test_no_message_in_time_is_1(programs: Programs) -> None:
    ended = programs.run("core", "recv", "--bind", "ipc://x.sock", "--timeout", "0.05")
    assert (ended.code, ended.complaint) == (1, "zmtp: no message within 0.05 s")


def test_endpoint_in_use_is_69(programs: Programs) -> None:
    holder = programs.start("core", "monitor", "--type", "pull", "--bind", "tcp://127.0.0.1:*", "--json")
    assert holder.process.stdout is not None
    endpoint = json.loads(holder.process.stdout.readline())["endpoint"]
    ended = programs.run("core", "recv", "--bind", endpoint)
    assert ended.code == 69
    assert endpoint in ended.complaint


@pytest.mark.parametrize(
    "arguments",
    [
        ["send", "x"],
        ["send", "--connect", "ipc://x.sock"],
        ["recv"],
        ["recv", "--bind", "nowhere"],
        ["recv", "--bind", "ipc://x.sock", "--option", "nonsense=1"],
        ["recv", "--bind", "ipc://x.sock", "--option", "rcvhwm=-1"],
        ["recv", "--bind", "ipc://x.sock", "--option", "rcvhwm"],
        ["monitor"],
    ],
)
def test_wrong_use_is_2(programs: Programs, arguments: list[str]) -> None:
    ended = programs.run("core", *arguments)
    assert (ended.code, ended.out) == (2, b"")


def test_keygen_prints_a_pair(programs: Programs) -> None:
    keys = json.loads(programs.run("core", "keygen", "--json").out)
    assert z85.encode(public_key(z85.decode(keys["secret"]))).decode() == keys["public"]
    text = dict(line.split() for line in programs.run("core", "keygen").lines)
    assert set(text) == {"public", "secret"}
    assert text["secret"] != keys["secret"]


def test_keygen_keeps_the_secret_in_a_file_of_its_owner(programs: Programs) -> None:
    keygen = ("core", "keygen", "--secret-file", "secret.key")
    shown = programs.run(*keygen).out.decode()
    file = programs.folder / "secret.key"
    secret = file.read_text().strip()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert shown == f"public {z85.encode(public_key(z85.decode(secret))).decode()}\n"
    again = programs.run(*keygen)
    assert again.code == 74
    assert again.complaint == "zmtp: secret.key: File exists; it stays as it is; choose another path, or remove it"
    assert file.read_text().strip() == secret
