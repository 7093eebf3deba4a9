"""Frames of every command, octet by octet (conformance 9.1 and the draft's table), and service names (MDP-05)."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING

import pytest

from core.zmtp.frames import encode_message
from mdp.wire import commands as p
from mdp.wire.events import (
    BrokerEvent,
    Cancel,
    Disconnect,
    Failure,
    Final,
    Heartbeat,
    Invalid,
    Partial,
    Ready,
    Request,
    Work,
    parse_at_broker,
    parse_at_client,
    parse_at_worker,
)
from tests.scenes.mdp_dispatcher import DIALECTS
from tests.scenes.mdp_messages import client_cancel, client_error, client_partial, worker_request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ID = b"\x00\x00\x00\x00\x00\x00\x01\x02"

# frames, how we make them, where they go, what they are read as
COMMANDS: list[tuple[list[bytes], list[bytes], Callable[[Sequence[bytes]], object], object]] = [
    (
        p.client_request("0.1", b"echo", [b"a", b""]),
        [b"", b"MDPC01", b"echo", b"a", b""],
        parse_at_broker,
        Request("0.1", b"echo", [b"a", b""]),
    ),
    (
        p.client_request("0.2", b"echo", [b"a", b""]),
        [b"MDPC02", b"\x01", b"echo", b"a", b""],
        parse_at_broker,
        Request("0.2", b"echo", [b"a", b""]),
    ),
    (
        p.client_request("0.3", b"echo", [b"a", b""], id=ID, options=b"\x80"),
        [b"MDPC03\x01" + ID, b"echo", b"\x80", b"a", b""],
        parse_at_broker,
        Request("0.3", b"echo", [b"a", b""], ID, b"\x80"),
    ),
    (client_cancel(ID), [b"MDPC03\x05" + ID], parse_at_broker, Cancel(ID)),
    (p.client_heartbeat(), [b"MDPC03\x06"], parse_at_broker, Heartbeat("0.3", "client")),
    (p.client_heartbeat(), [b"MDPC03\x06"], parse_at_client, Heartbeat("0.3", "client")),
    (
        client_partial("0.2", b"echo", b"", [b"a"]),
        [b"MDPC02", b"\x02", b"echo", b"a"],
        parse_at_client,
        Partial("0.2", b"", b"echo", [b"a"]),
    ),
    (client_partial("0.3", b"echo", ID, [b"a"]), [b"MDPC03\x02" + ID, b"a"], parse_at_client, Partial("0.3", ID, b"", [b"a"])),
    (
        p.client_final("0.1", b"echo", b"", [b"a"]),
        [b"", b"MDPC01", b"echo", b"a"],
        parse_at_client,
        Final("0.1", b"", b"echo", [b"a"]),
    ),
    (
        p.client_final("0.2", b"echo", b"", [b"a"]),
        [b"MDPC02", b"\x03", b"echo", b"a"],
        parse_at_client,
        Final("0.2", b"", b"echo", [b"a"]),
    ),
    (p.client_final("0.3", b"echo", ID, [b"a"]), [b"MDPC03\x03" + ID, b"a"], parse_at_client, Final("0.3", ID, b"", [b"a"])),
    (client_error(ID, "BUSY", "full"), [b"MDPC03\x04" + ID, b"BUSY", b"full"], parse_at_client, Failure(ID, "BUSY", "full")),
    (p.worker_ready("0.1", b"echo"), [b"", b"MDPW01", b"\x01", b"echo"], parse_at_broker, Ready("0.1", b"echo")),
    (p.worker_ready("0.2", b"echo"), [b"MDPW02", b"\x01", b"echo"], parse_at_broker, Ready("0.2", b"echo")),
    (
        p.worker_ready("0.3", b"echo", options=b"\x80"),
        [b"MDPW03\x01", b"echo", b"\x80"],
        parse_at_broker,
        Ready("0.3", b"echo", b"\x80"),
    ),
    (
        worker_request("0.1", b"C", [b"a"]),
        [b"", b"MDPW01", b"\x02", b"C", b"", b"a"],
        parse_at_worker,
        Work("0.1", b"C", [b"a"]),
    ),
    (worker_request("0.2", b"C", [b"a"]), [b"MDPW02", b"\x02", b"C", b"", b"a"], parse_at_worker, Work("0.2", b"C", [b"a"])),
    (
        worker_request("0.3", ID, [b"a"], options=b"\x80"),
        [b"MDPW03\x02" + ID, b"\x80", b"a"],
        parse_at_worker,
        Work("0.3", ID, [b"a"], b"\x80"),
    ),
    (p.worker_cancel(ID), [b"MDPW03\x08" + ID], parse_at_worker, Cancel(ID)),
    (
        p.worker_partial("0.2", b"C", [b"a"]),
        [b"MDPW02", b"\x03", b"C", b"", b"a"],
        parse_at_broker,
        Partial("0.2", b"C", b"", [b"a"]),
    ),
    (p.worker_partial("0.3", ID, [b"a"]), [b"MDPW03\x03" + ID, b"a"], parse_at_broker, Partial("0.3", ID, b"", [b"a"])),
    (
        p.worker_final("0.1", b"C", [b"a"]),
        [b"", b"MDPW01", b"\x03", b"C", b"", b"a"],
        parse_at_broker,
        Final("0.1", b"C", b"", [b"a"]),
    ),
    (
        p.worker_final("0.2", b"C", [b"a"]),
        [b"MDPW02", b"\x04", b"C", b"", b"a"],
        parse_at_broker,
        Final("0.2", b"C", b"", [b"a"]),
    ),
    (p.worker_final("0.3", ID, [b"a"]), [b"MDPW03\x04" + ID, b"a"], parse_at_broker, Final("0.3", ID, b"", [b"a"])),
    (
        p.worker_error(ID, "HANDLER_ERROR", "no"),
        [b"MDPW03\x05" + ID, b"HANDLER_ERROR", b"no"],
        parse_at_broker,
        Failure(ID, "HANDLER_ERROR", "no"),
    ),
    (p.worker_heartbeat("0.1"), [b"", b"MDPW01", b"\x04"], parse_at_broker, Heartbeat("0.1", "worker")),
    (p.worker_heartbeat("0.2"), [b"MDPW02", b"\x05"], parse_at_broker, Heartbeat("0.2", "worker")),
    (p.worker_heartbeat("0.3"), [b"MDPW03\x06"], parse_at_broker, Heartbeat("0.3", "worker")),
    (p.worker_heartbeat("0.1"), [b"", b"MDPW01", b"\x04"], parse_at_worker, Heartbeat("0.1", "worker")),
    (p.worker_heartbeat("0.2"), [b"MDPW02", b"\x05"], parse_at_worker, Heartbeat("0.2", "worker")),
    (p.worker_heartbeat("0.3"), [b"MDPW03\x06"], parse_at_worker, Heartbeat("0.3", "worker")),
    (p.worker_disconnect("0.1"), [b"", b"MDPW01", b"\x05"], parse_at_broker, Disconnect("0.1")),
    (p.worker_disconnect("0.2"), [b"MDPW02", b"\x06"], parse_at_broker, Disconnect("0.2")),
    (p.worker_disconnect("0.3"), [b"MDPW03\x07"], parse_at_broker, Disconnect("0.3")),
    (p.worker_disconnect("0.1"), [b"", b"MDPW01", b"\x05"], parse_at_worker, Disconnect("0.1")),
    (p.worker_disconnect("0.2"), [b"MDPW02", b"\x06"], parse_at_worker, Disconnect("0.2")),
    (p.worker_disconnect("0.3"), [b"MDPW03\x07"], parse_at_worker, Disconnect("0.3")),
]


@pytest.mark.parametrize(("made", "frames", "parse", "event"), COMMANDS)
def test_command(made: list[bytes], frames: list[bytes], parse: Callable[[Sequence[bytes]], object], event: object) -> None:
    """Every command has exactly the frames of the table and is read back as what it is."""
    assert made == frames
    assert parse(frames) == event


def test_fixtures_of_the_specification() -> None:
    """Conformance 16: raw octets of READY and REQUEST."""
    assert encode_message(p.worker_ready("0.1", b"echo")) == b"\x01\x00\x01\x06MDPW01\x01\x01\x01\x00\x04echo"
    assert encode_message(p.worker_ready("0.2", b"echo")) == b"\x01\x06MDPW02\x01\x01\x01\x00\x04echo"
    assert encode_message(p.client_request("0.1", b"echo", [b"hi"])) == b"\x01\x00\x01\x06MDPC01\x01\x04echo\x00\x02hi"
    assert encode_message(p.client_request("0.2", b"echo", [b"hi"])) == b"\x01\x06MDPC02\x01\x01\x01\x01\x04echo\x00\x02hi"


def test_heartbeat_and_disconnect_are_new_lists_each_time() -> None:
    p.worker_heartbeat("0.1").append(b"mine")
    p.worker_disconnect("0.1").append(b"mine")
    assert p.worker_heartbeat("0.1") == [b"", b"MDPW01", b"\x04"]
    assert p.worker_disconnect("0.1") == [b"", b"MDPW01", b"\x05"]


AT_BROKER = [frames for _, frames, parse, _ in COMMANDS if parse is parse_at_broker]
AT_CLIENT = [frames for _, frames, parse, _ in COMMANDS if parse is parse_at_client]
AT_WORKER = [frames for _, frames, parse, _ in COMMANDS if parse is parse_at_worker]


@pytest.mark.parametrize(
    ("parse", "frames"),
    [
        *product([parse_at_broker], AT_BROKER),
        *product([parse_at_client], AT_CLIENT),
        *product([parse_at_worker], AT_WORKER),
    ],
)
def test_mdp_03_headers_and_commands_match_exactly(parse: Callable[[Sequence[bytes]], object], frames: list[bytes]) -> None:
    """MDP-03: with one octet of header or command changed, added or taken away nothing is read as the same command."""
    event = parse(frames)
    heads = 2 if frames[0] in (b"MDPC02", b"MDPW02") else 1 if frames[0] else 3 if frames[1] == b"MDPW01" else 2
    for at in range(heads):
        head = frames[at]
        length = 7 if len(head) == 15 else len(head)  # the number after it is free
        for changed in (*(head[:i] + bytes([head[i] ^ 0x40]) + head[i + 1 :] for i in range(length)), head + b"\x00", head[:-1]):
            if changed != head:
                assert isinstance(parse([*frames[:at], changed, *frames[at + 1 :]]), Invalid), changed
    assert not isinstance(event, Invalid)


@pytest.mark.parametrize(("made", "frames", "parse", "event"), COMMANDS)
def test_mdp_03_too_few_frames(made: list[bytes], frames: list[bytes], parse: Callable[[Sequence[bytes]], object], event: object) -> None:
    """MDP-03, MDP-06, MDP-08: a command cut after any frame is invalid; a body has any number of frames."""
    bodies = {Request, Partial, Final, Work}
    for length in range(len(frames)):
        cut = parse(frames[:length])
        assert isinstance(cut, Invalid) or (type(event) in bodies and type(cut) is type(event))


@pytest.mark.parametrize("frames", [f for f, _, parse, e in COMMANDS if isinstance(e, (Heartbeat, Disconnect, Cancel, Ready, Failure))])
def test_mdp_03_too_many_frames(frames: list[bytes]) -> None:
    """MDP-03: commands without body have no frames beyond."""
    for parse in (parse_at_broker, parse_at_client, parse_at_worker):
        assert isinstance(parse([*frames, b""]), Invalid)


@pytest.mark.parametrize("dialect", ["0.1", "0.2"])
def test_mdp_06_the_frame_after_the_address_is_empty(dialect: p.Dialect) -> None:
    frames = p.worker_final(dialect, b"C", [b"a"])
    frames[frames.index(b"C") + 1] = b"x"
    assert parse_at_broker(frames) == Invalid("address", "worker", dialect)
    frames = worker_request(dialect, b"C", [b"a"])
    frames[frames.index(b"C") + 1] = b"x"
    assert parse_at_worker(frames) == Invalid("address", "worker", dialect)


GOOD_NAMES = [b"e", b"echo", b"x" * 255, "dienst-äöü".encode(), b"a b", b"mmi.x", b"../x"]
BAD_NAMES = [b"", b"x" * 256, b"x" * 2**20, b"a\nb", b"a\x00", b"\x1b[31m", b"\xff\xfe", "a\u202eb".encode(), b"\x7f"]


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_mdp_05_service_names(name: bytes) -> None:
    assert p.is_service_name(name)
    for dialect in DIALECTS:
        event = parse_at_broker(p.client_request(dialect, name, [b"x"], id=ID))
        assert isinstance(event, Request)
        assert event.service == name


@pytest.mark.parametrize("name", BAD_NAMES)
def test_mdp_05_what_is_no_service_name(name: bytes) -> None:
    assert not p.is_service_name(name)
    for dialect in DIALECTS:
        event = parse_at_broker(p.client_request(dialect, name, [b"x"], id=ID))
        assert event == Invalid("service", "client", dialect, ID if dialect == "0.3" else b"")


@pytest.mark.parametrize("length", [0, 1, 7, 9, 16])
def test_numbers_have_eight_octets(length: int) -> None:
    octets = bytes(length)
    messages: list[BrokerEvent] = [
        parse_at_broker(p.client_request("0.3", b"echo", [b"x"], id=octets)),
        parse_at_broker(client_cancel(octets)),
        parse_at_broker(p.worker_final("0.3", octets, [b"x"])),
        parse_at_broker(p.worker_error(octets, "BUSY", "")),
    ]
    assert all(isinstance(event, Invalid) and event.reason == "id" for event in messages)
    assert parse_at_client(p.client_final("0.3", b"", octets, [b"x"])) == Invalid("id", "client", "0.3")
    assert parse_at_worker(worker_request("0.3", octets, [b"x"])) == Invalid("id", "worker", "0.3")


@pytest.mark.parametrize("code", [b"", b"busy", b"A" * 33, b"A B", b"\xff", b"4"])
def test_codes_are_words(code: bytes) -> None:
    assert parse_at_client([b"MDPC03\x04" + ID, code, b""]) == Invalid("error", "client", "0.3", ID)
    assert parse_at_broker([b"MDPW03\x05" + ID, code, b""]) == Invalid("error", "worker", "0.3", ID)


def test_texts_are_cut_and_never_raise() -> None:
    event = parse_at_client([b"MDPC03\x04" + ID, b"BUSY", b"\xff" * 5000])
    assert isinstance(event, Failure)
    assert event.text == "\N{REPLACEMENT CHARACTER}" * p.TEXT_BYTES_MAX


@pytest.mark.parametrize(
    ("octets", "text"),
    [(b"echo", "echo"), ("ä".encode(), "ä"), (b"a\nb", "610a62"), (b"\xff", "ff"), (b"", ""), (b"\x1b[2J", "1b5b324a")],
)
def test_printable(octets: bytes, text: str) -> None:
    """Fault X3: nothing of a peer can write over a terminal or forge a line of a log."""
    assert p.printable(octets) == text


@pytest.mark.parametrize("parse", [parse_at_broker, parse_at_client, parse_at_worker])
def test_no_frames_at_all(parse: Callable[[Sequence[bytes]], object]) -> None:
    assert parse([]) == Invalid("frames")
