"""TRN-01 to TRN-05 and TRN-10: endpoint texts, ours against libzmq's verdict on the same text.

`BIND` and `CONNECT` hold for each text what we make of it: a record, or the errno we refuse it with. Where libzmq decides
otherwise its own verdict stands beside ours, so that each difference is one that somebody chose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from core.address import (
    HostKind,
    InprocBind,
    InprocConnect,
    IpcBind,
    IpcConnect,
    NameConnect,
    TcpBind,
    TcpConnect,
    TcpSource,
    parse_bind,
    parse_connect,
    tcp_endpoint,
)
from core.errors import (
    EADDRINUSE,
    EINVAL,
    ENAMETOOLONG,
    ENOCOMPATPROTO,
    ENODEV,
    EPROTONOSUPPORT,
    InvalidEndpoint,
)

if TYPE_CHECKING:
    from pathlib import Path

ACCEPTED = 0
LONGEST = "/" + "a" * 106
TOO_LONG = "/" + "a" * 107


class Case(NamedTuple):
    rule: str
    endpoint: str
    ours: Any  # the record, without its endpoint text, or an errno
    libzmq: int | None = None  # its errno where it differs from ours; ACCEPTED where it takes what we refuse
    ipv6: bool = False


def tcp(host: str, kind: HostKind, port: int) -> TcpBind:
    return TcpBind("", host, kind, port)


BIND = [
    Case("TRN-01", "", EINVAL),
    Case("TRN-01", "tcp", EINVAL),
    Case("TRN-01", "tcp:/", EINVAL),
    Case("TRN-01", "tcp://", EINVAL),
    Case("TRN-01", "://x", EINVAL),
    Case("TRN-01", "ipc://", EINVAL),
    Case("TRN-01", "inproc://", EINVAL),
    Case("TRN-01", "foo://x", EPROTONOSUPPORT),
    Case("TRN-01", "TCP://127.0.0.1:*", EPROTONOSUPPORT),
    Case("TRN-01", "name://x", EPROTONOSUPPORT),
    Case("TRN-01", "udp://127.0.0.1:5", ENOCOMPATPROTO),
    Case("TRN-02", "tcp://*:*", tcp("*", HostKind.ANY, 0)),
    Case("TRN-02", "tcp://*:0", tcp("*", HostKind.ANY, 0)),
    Case("TRN-02", "tcp://[*]:*", tcp("*", HostKind.ANY, 0)),
    Case("TRN-02", "tcp://127.0.0.1:*", tcp("127.0.0.1", HostKind.IPV4, 0)),
    Case("TRN-02", "tcp://127.0.0.1:0", tcp("127.0.0.1", HostKind.IPV4, 0)),
    Case("TRN-02", "tcp://lo:*", tcp("lo", HostKind.NAME, 0)),
    Case("TRN-02", "tcp://localhost:*", tcp("localhost", HostKind.NAME, 0)),
    Case("TRN-02", "tcp://[::1]:*", ENODEV),
    Case("TRN-02", "tcp://[::1]:*", tcp("::1", HostKind.IPV6, 0), ipv6=True),
    Case("TRN-02", "tcp://::1:*", tcp("::1", HostKind.IPV6, 0), ipv6=True),
    Case("TRN-02", "tcp://[::]:*", tcp("::", HostKind.IPV6, 0), ipv6=True),
    Case("TRN-02", "tcp://*:*", tcp("*", HostKind.ANY, 0), ipv6=True),
    Case("TRN-02", "tcp://[]:*", ENODEV, ipv6=True),
    Case("TRN-02", "tcp://[lo]:*", ENODEV, libzmq=ACCEPTED, ipv6=True),
    Case("TRN-02", "tcp://*", EINVAL),
    Case("TRN-02", "tcp://*:", EINVAL),
    Case("TRN-02", "tcp://:", EINVAL),
    Case("TRN-02", "tcp://:5", ENODEV),
    Case("TRN-02", "tcp:// 127.0.0.1:0", ENODEV),
    Case("TRN-02", "tcp://127.0.0.1:*;x:1", ENODEV),
    Case("TRN-02", "tcp://127.0.0.1:http", EINVAL),
    Case("TRN-02", "tcp://127.0.0.1:0a", EINVAL),
    Case("TRN-02", "tcp://127.0.0.1:+0", EINVAL),
    Case("TRN-02", "tcp://127.0.0.1: 0", EINVAL),
    Case("TRN-02", "tcp://127.0.0.1:0x0", EINVAL),
    Case("TRN-02", "tcp://127.0.0.1:00000", EINVAL),
    Case("TRN-05", "tcp://127.0.0.1:70000", EINVAL, libzmq=ACCEPTED),
    Case("TRN-05", "tcp://127.0.0.1:-1", EINVAL, libzmq=ACCEPTED),
    Case("TRN-05", "tcp://127.0.0.1:" + "9" * 5000, EINVAL, libzmq=ACCEPTED),
    Case("TRN-10", "ipc://*", IpcBind("", "", wildcard=True)),
    Case("TRN-10", "ipc://@majordomo-endpoint-test", IpcBind("", "\0majordomo-endpoint-test")),
    Case("TRN-10", "ipc://some.socket", IpcBind("", "some.socket")),
    Case("TRN-10", "ipc://" + TOO_LONG, ENAMETOOLONG),
    Case("TRN-10", "ipc://@" + TOO_LONG[1:], ENAMETOOLONG),
    Case("TRN-10", "ipc://" + "ä" * 54, ENAMETOOLONG),
    Case("TRN-10", "ipc://@", EINVAL),
    Case("TRN-01", "inproc://a b", InprocBind("", "a b")),
]


def to(host: str, kind: HostKind, port: int, source: TcpSource | None = None) -> TcpConnect:
    return TcpConnect("", host, kind, port, source)


LOOPBACK_5 = ("127.0.0.1", HostKind.IPV4, 5)

CONNECT = [
    Case("TRN-01", "", EINVAL),
    Case("TRN-01", "tcp", EINVAL),
    Case("TRN-01", "tcp://", EINVAL),
    Case("TRN-01", "inproc://", EINVAL),
    Case("TRN-01", "foo://x", EPROTONOSUPPORT),
    Case("TRN-01", "udp://127.0.0.1:5", ENOCOMPATPROTO),
    Case("TRN-01", "inproc://x", InprocConnect("", "x")),
    Case("TRN-01", "name://db", NameConnect("", "db"), libzmq=EPROTONOSUPPORT),
    Case("TRN-04", "tcp://127.0.0.1:5", to(*LOOPBACK_5)),
    Case("TRN-04", "tcp://[::1]:5", to("::1", HostKind.IPV6, 5)),
    Case("TRN-04", "tcp://::1:5", to("::1", HostKind.IPV6, 5)),
    Case("TRN-04", "tcp://[fe80::1%lo]:5", to("fe80::1%lo", HostKind.IPV6, 5)),
    Case("TRN-04", "tcp://nosuch.invalid:5", to("nosuch.invalid", HostKind.NAME, 5)),
    Case("TRN-04", "tcp://a_b:5", to("a_b", HostKind.NAME, 5)),
    Case("TRN-04", "tcp://*:5", EINVAL),
    Case("TRN-04", "tcp://127.0.0.1:*", EINVAL),
    Case("TRN-04", "tcp://127.0.0.1", EINVAL),
    Case("TRN-04", "tcp://127.0.0.1:", EINVAL),
    Case("TRN-04", "tcp://127.0.0.1:http", EINVAL),
    Case("TRN-04", "tcp://127.0.0.1:5/", EINVAL),
    Case("TRN-04", "tcp://a b:5", EINVAL),
    Case("TRN-04", "tcp://bad!host:5", EINVAL),
    Case("TRN-04", "tcp://-:5", EINVAL),
    Case("TRN-04", "tcp://127.0.0.1:0;127.0.0.1:5", to(*LOOPBACK_5, TcpSource("127.0.0.1", HostKind.IPV4, 0))),
    Case("TRN-04", "tcp://127.0.0.1:7;127.0.0.1:5", to(*LOOPBACK_5, TcpSource("127.0.0.1", HostKind.IPV4, 7))),
    Case("TRN-04", "tcp://127.0.0.1;127.0.0.1:5", to(*LOOPBACK_5, TcpSource("127.0.0.1", HostKind.IPV4, 0))),
    Case("TRN-04", "tcp://eth1:0;server:5555", to("server", HostKind.NAME, 5555, TcpSource("eth1", HostKind.NAME, 0))),
    Case("TRN-04", "tcp://[::1]:0;[::1]:5", to("::1", HostKind.IPV6, 5, TcpSource("::1", HostKind.IPV6, 0))),
    Case("TRN-04", "tcp://;127.0.0.1:5", EINVAL),
    Case("TRN-04", "tcp://*:0;127.0.0.1:5", EINVAL),
    Case("TRN-04", "tcp://*:*;127.0.0.1:5", EINVAL),
    Case("TRN-04", "tcp://127.0.0.1:5;127.0.0.1:*", EINVAL),
    # From here libzmq takes what can never connect, and retries for ever; we say so at once.
    Case("TRN-04", "tcp://127.0.0.1:0", EINVAL, libzmq=ACCEPTED),
    Case("TRN-04", "tcp://:5", EINVAL, libzmq=ACCEPTED),
    Case("TRN-04", "tcp://127.0.0.1:5;", EINVAL, libzmq=ACCEPTED),
    Case("TRN-04", "tcp://a;b;c:5", EINVAL, libzmq=ACCEPTED),
    Case("TRN-04", "tcp://a..b:5", EINVAL, libzmq=ACCEPTED),
    Case("TRN-04", "tcp://" + "a" * 64 + ":5", EINVAL, libzmq=ACCEPTED),
    Case("TRN-05", "tcp://127.0.0.1:70000", EINVAL, libzmq=ACCEPTED),
    Case("TRN-10", "ipc://*", EINVAL, libzmq=ACCEPTED),
    Case("TRN-10", "ipc://@", EINVAL),
    Case("TRN-10", "ipc://@x", IpcConnect("", "\0x")),
    Case("TRN-10", "ipc://some.socket", IpcConnect("", "some.socket")),
    Case("TRN-10", "ipc://" + LONGEST, IpcConnect("", LONGEST)),
    Case("TRN-10", "ipc://" + TOO_LONG, ENAMETOOLONG),
]


def describe(case: object) -> str | None:
    if not isinstance(case, Case):
        return None
    return f"{case.rule} {case.endpoint[:40]}{' ipv6' if case.ipv6 else ''}"


def expect(case: Case, parsed: object) -> None:
    assert not isinstance(case.ours, int), f"{case.endpoint} was to be refused"
    assert parsed == type(case.ours)(**{**fields(case.ours), "endpoint": case.endpoint})


def fields(record: Any) -> dict[str, Any]:
    return {name: getattr(record, name) for name in type(record).__dataclass_fields__}


@pytest.mark.parametrize("case", BIND, ids=describe)
def test_bind(case: Case) -> None:
    """TRN-01, TRN-02, TRN-05, TRN-10."""
    if isinstance(case.ours, int):
        with pytest.raises(InvalidEndpoint) as caught:
            parse_bind(case.endpoint, ipv6=case.ipv6)
        assert (caught.value.errno, caught.value.endpoint) == (case.ours, case.endpoint)
    else:
        expect(case, parse_bind(case.endpoint, ipv6=case.ipv6))


@pytest.mark.parametrize("case", CONNECT, ids=describe)
def test_connect(case: Case) -> None:
    """TRN-01, TRN-04, TRN-05."""
    if isinstance(case.ours, int):
        with pytest.raises(InvalidEndpoint) as caught:
            parse_connect(case.endpoint)
        assert (caught.value.errno, caught.value.endpoint) == (case.ours, case.endpoint)
    else:
        expect(case, parse_connect(case.endpoint))


def verdict_of_libzmq(operation: str, case: Case) -> int:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.linger = 0
        socket.ipv6 = case.ipv6
        try:
            getattr(socket, operation)(case.endpoint)
        except zmq.ZMQError as error:
            return error.errno or -1
        return ACCEPTED


def verdict_expected(case: Case) -> int:
    if case.libzmq is not None:
        return case.libzmq
    return case.ours if isinstance(case.ours, int) else ACCEPTED


@pytest.mark.parametrize("case", BIND, ids=describe)
def test_libzmq_binds_the_same(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    verdict = verdict_of_libzmq("bind", case)
    if case.rule == "TRN-05" or case.endpoint.startswith("ipc://@majordomo"):  # a fixed port, a fixed name: another program may have it
        assert verdict in (ACCEPTED, EADDRINUSE)
    else:
        assert verdict == verdict_expected(case)


@pytest.mark.parametrize("case", CONNECT, ids=describe)
def test_libzmq_connects_the_same(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert verdict_of_libzmq("connect", case) == verdict_expected(case)


def test_trn_10_abstract_names_have_no_file() -> None:
    abstract, file = parse_bind("ipc://@x"), parse_bind("ipc://x")
    assert isinstance(abstract, IpcBind)
    assert isinstance(file, IpcBind)
    assert abstract.abstract
    assert not file.abstract


@pytest.mark.parametrize("path", ["a\0b", "\0x", "\ud800"])
def test_trn_10_what_no_file_can_be_called(path: str) -> None:
    with pytest.raises(InvalidEndpoint) as caught:
        parse_connect("ipc://" + path)
    assert caught.value.errno == EINVAL


@pytest.mark.parametrize(
    "host,port,text",
    [
        ("0.0.0.0", 5, "tcp://0.0.0.0:5"),
        ("::1", 44127, "tcp://[::1]:44127"),
        ("::ffff:127.0.0.1", 1, "tcp://[::ffff:127.0.0.1]:1"),
    ],
)
def test_trn_03_numeric_addresses_as_text(host: str, port: int, text: str) -> None:
    assert tcp_endpoint(host, port) == text
    assert parse_connect(text).endpoint == text


@given(st.one_of(st.text(), st.from_regex(r"(tcp|ipc|inproc|name|udp)://[^/]{0,300}")))
def test_any_text_is_parsed_or_refused(endpoint: str) -> None:
    for parse in (parse_bind, parse_connect):
        try:
            assert parse(endpoint).endpoint == endpoint
        except InvalidEndpoint as error:
            assert error.endpoint == endpoint  # noqa: PT017 - half of the inputs are meant to be refused
