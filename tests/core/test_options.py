"""core.options: the table, the values, and what libzmq says about both."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import zmq

import core
from core import constants
from core.errors import EINVAL, InvalidOption
from core.option_table import TABLE, Acts, Kind, OptionRow, row_of
from core.options import Options, OptionValues, SocketSettings, UpperCase, declares
from core.zmtp.z85 import encode

NUMBERED = [row for row in TABLE if row.number is not None]
INTEGERS = [row for row in TABLE if row.kind in (Kind.INT, Kind.BOOL)]
TEXTS = [row for row in TABLE if row not in INTEGERS]
# SOCK-07: these act at once, everything else on later binds and connects.
ACTS_AT_ONCE = (
    *("sndhwm", "rcvhwm", "sndhwm_bytes", "rcvhwm_bytes", "linger", "sndtimeo", "rcvtimeo", "max_subscription_bytes"),
    *("router_mandatory", "router_handover", "req_correlate", "req_relaxed", "connect_routing_id"),
    *("xpub_verbose", "xpub_verboser", "xpub_nodrop", "xpub_manual", "invert_matching"),
)


def names(row: object) -> str:
    assert isinstance(row, OptionRow)
    return row.name


def test_attributes_are_the_rows() -> None:
    assert set(OptionValues.__annotations__) == {row.name for row in TABLE} == set(Options.__slots__) - {"mechanism"}
    assert len({row.number for row in NUMBERED}) == len(NUMBERED)
    for row in TABLE:
        assert OptionValues.__annotations__[row.name] == ("int" if row in INTEGERS else "bytes")


def test_keywords_of_a_new_socket_are_the_names_of_the_options() -> None:
    names = set(SocketSettings.__annotations__)
    assert {row.name for row in TABLE} < names
    for name in names - {"hwm"}:
        row_of(name)


def test_upper_case_names_have_the_types_of_the_others() -> None:
    types = dict(UpperCase.__annotations__)
    assert {name: types.pop(name.upper()) for name in OptionValues.__annotations__} == OptionValues.__annotations__
    more = {
        "HWM": "int",
        "IDENTITY": "bytes",
        "MECHANISM": "int",
        "EVENTS": "int",
        "RCVMORE": "int",
        "LAST_ENDPOINT": "bytes",
        "TYPE": "int",
    }
    assert types == more | dict.fromkeys(("PEER_MAX_PARTS", "PEER_MAX_MESSAGE_BYTES", "PEER_MAXMSGSIZE"), "int")


async def test_every_typed_upper_case_name_is_an_attribute_of_that_type() -> None:
    async with core.Context() as context:
        socket = context.socket(core.DEALER)
        socket.bind("tcp://127.0.0.1:*")
        for name, type_name in UpperCase.__annotations__.items():
            assert type(getattr(socket, name)).__mro__[-2].__name__ == type_name, name


@pytest.mark.parametrize("row", TABLE, ids=names)
def test_every_row_is_complete(row: OptionRow) -> None:
    assert row.why
    assert row.unit or row.kind is Kind.BOOL
    assert row.low <= row.high
    if row in INTEGERS:
        assert isinstance(row.default, int)
        assert row.low <= row.default <= row.high
    assert (row.acts is Acts.ALWAYS) is (row.name in ACTS_AT_ONCE)


@pytest.mark.parametrize("row", NUMBERED, ids=names)
def test_name_and_number_are_libzmqs(row: OptionRow) -> None:
    assert row.number == int(getattr(zmq, row.name.upper()))


@pytest.mark.parametrize("row", [row for row in NUMBERED if row.kind is not Kind.KEY], ids=names)
def test_default_is_libzmqs_or_says_so(row: OptionRow) -> None:
    """Write-only options cannot be asked for; libzmq answers EINVAL there."""
    assert row.number is not None
    expected = row.default if row.libzmq_default is None else row.libzmq_default
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        try:
            actual = socket.getsockopt(row.number)
        except zmq.ZMQError as error:
            assert error.errno == EINVAL  # noqa: PT017 - the branch of the options that cannot be read
            assert row.default in (0, b"")
        else:
            assert actual == expected


def test_differences_from_libzmq_are_these() -> None:
    assert {row.name: (row.default, row.libzmq_default) for row in TABLE if row.libzmq_default is not None} == {
        "linger": (5000, -1),
        "handshake_ivl": (5000, 30000),
    }


@pytest.mark.parametrize("row", INTEGERS, ids=names)
def test_integers_keep_their_range(row: OptionRow) -> None:
    """OPT-06."""
    options = Options()
    for value in (row.low, row.high):
        options.set(row.name, value)
        assert options.get(row.name) == value == getattr(options, row.name)
    wrong: list[Any] = [row.low - 1, row.high + 1, "1", 1.0, None, b"1"]
    for other in wrong:
        with pytest.raises(InvalidOption) as caught:
            options.set(row.name, other)
        assert caught.value.errno == EINVAL
        assert row.name in str(caught.value)
        assert str(row.low) in str(caught.value)
        assert options.get(row.name) == row.high


@pytest.mark.parametrize("row", [row for row in TEXTS if row.kind is not Kind.KEY], ids=names)
def test_texts_keep_their_length(row: OptionRow) -> None:
    """OPT-06."""
    options = Options()
    longest = min(row.high, 100_000)
    first = b"X-a:" if row.kind is Kind.PROPERTY else b""
    for value in (first + b"x" * max(row.low, 1), first + b"x" * (longest - len(first))):
        options.set(row.name, value)
        assert options.get(row.name) == value
    wrong: list[Any] = [7, None, [b"x"]]
    if row.low:
        wrong.append(b"")
    if first:
        wrong += [b"x", b"X-a", b"a:b", b"X-:b", b"X-" + b"n" * 254 + b":"]
    if row.high == longest:
        wrong.append(b"x" * (longest + 1))
    for other in wrong:
        with pytest.raises(InvalidOption) as caught:
            options.set(row.name, other)
        assert caught.value.option == row.name


@pytest.mark.parametrize("name", ["routing_id", "connect_routing_id"])
def test_zmtp_44_ids_of_ours_never_start_with_zero(name: str) -> None:
    with pytest.raises(InvalidOption):
        Options().set(name, b"\x00abcd")


@pytest.mark.parametrize("name", ["curve_publickey", "curve_secretkey", "curve_serverkey"])
def test_curve_17_keys_are_octets_or_z85(name: str) -> None:
    raw = bytes(range(200, 232))
    assert getattr(Options(**{name: raw}), name) == raw
    assert getattr(Options(**{name: encode(raw)}), name) == raw
    assert getattr(Options(**{name: encode(raw).decode()}), name) == raw
    for wrong in (b"", raw[:-1], b"~" * 40, b"#" * 40, b"x" * 41):
        with pytest.raises(InvalidOption) as caught:
            Options(**{name: wrong})
        assert "~" not in str(caught.value), "no key material in an error text"


def test_older_names_and_both_directions_at_once() -> None:
    options = Options(identity="worker-1", hwm=7)
    assert options.routing_id == options.get("IDENTITY") == options.get(constants.ROUTING_ID) == b"worker-1"
    assert (options.sndhwm, options.rcvhwm) == (7, 7)
    options.set(constants.SNDHWM, 3)
    assert options.get("hwm") == options.get(constants.HWM) == 3
    options.set(constants.HWM, 9)
    assert (options.sndhwm, options.rcvhwm) == (9, 9)
    assert row_of("delay_attach_on_connect") is row_of("immediate")


@pytest.mark.parametrize("key", ["nonsense", "rcvmore", 999, constants.EVENTS, constants.SUBSCRIBE])
def test_what_has_no_value_is_refused(key: int | str) -> None:
    with pytest.raises(InvalidOption):
        Options().set(key, 1)
    with pytest.raises(InvalidOption):
        Options().get(key)


def test_copy_is_independent() -> None:
    one = Options(linger=0, plain_server=1)
    two = one.copy()
    one.set("linger", 7)
    assert (two.linger, two.mechanism, two.as_server) == (0, constants.PLAIN, True)


@pytest.mark.parametrize(
    "settings,mechanism,as_server",
    [
        ([], constants.NULL, False),
        ([("plain_server", 1)], constants.PLAIN, True),
        ([("plain_username", b"admin"), ("plain_password", b"")], constants.PLAIN, False),
        ([("plain_server", 1), ("plain_server", 0)], constants.NULL, False),
        ([("curve_server", 1), ("curve_secretkey", b"k" * 32)], constants.CURVE, True),
        ([("curve_serverkey", b"k" * 32)], constants.CURVE, False),
        ([("curve_server", 1), ("curve_server", 0)], constants.NULL, False),
        ([("plain_server", 1), ("curve_serverkey", b"k" * 32)], constants.CURVE, False),
    ],
)
def test_mechanism_is_what_was_set_last(settings: list[tuple[str, int | bytes]], mechanism: int, as_server: bool) -> None:
    """PLAIN-01, CURVE-17."""
    options = Options()
    for name, value in settings:
        options.set(name, value)
    assert options.mechanism == options.get("mechanism") == options.get(constants.MECHANISM) == mechanism
    assert options.as_server is as_server


def test_a_frame_of_16_mib_passes_the_default_limits() -> None:
    options = Options()
    assert options.max_message_bytes > 16 * 1024 * 1024
    assert options.rcvhwm_bytes >= options.max_message_bytes


@pytest.mark.parametrize("row", TABLE, ids=names)
def test_the_specification_says_the_same(row: OptionRow) -> None:
    text = (Path(__file__).parents[2] / "specs" / "sockets.md").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith(f"| `{row.name}` | "))
    _, _, number, default, _, unit, acts, why, _ = (cell.strip() for cell in line.split("|"))
    assert number == ("-" if row.number is None else str(row.number))
    assert default == (str(row.default) if row in INTEGERS else "unset")
    assert (unit, acts, why) == (row.unit or "switch", row.acts.value, row.why)


def test_an_annotation_that_has_no_value_while_the_program_runs_declares_its_attribute() -> None:
    """From Python 3.14 on annotations are evaluated when they are read."""
    annotation = "OnlyForTypeCheckers" if sys.version_info >= (3, 14) else "'OnlyForTypeCheckers'"
    names: dict[str, Any] = {"Base": core.Context}
    exec(compile(f"class Own(Base):\n    purpose: {annotation}", "program", "exec", dont_inherit=True), names)
    assert declares(names["Own"], core.Context, "purpose")
    assert not declares(names["Own"], core.Context, "purposes")
