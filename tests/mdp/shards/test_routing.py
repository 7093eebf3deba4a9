"""Each kind of message goes to its shard, in all dialects.

Rules of specs/mdp.md: SHD-08.
"""

from __future__ import annotations

import pytest

from core.zmtp.frames import encode_message
from mdp.shards.routing import Kind, Route, route_of
from mdp.wire.commands import DIALECTS, V03, client_heartbeat, client_request, worker_heartbeat, worker_ready
from mdp.wire.shards import shard_of
from tests.scenes.mdp_messages import client_cancel

ID = b"\x00" * 7 + b"\x09"
SERVICES = [b"echo", b"total", b"geo.nearest", "größe".encode()]


def route(frames: list[bytes], count: int = 8) -> Route:
    octets = encode_message(frames)
    return route_of(b"before" + octets + b"after", 6, 6 + len(octets), count)


def request(dialect: str, service: bytes, *body: bytes) -> list[bytes]:
    return client_request(dialect, service, body or (b"x",), id=ID)  # type: ignore[arg-type]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("service", SERVICES)
def test_requests_and_workers_go_to_the_shard_of_the_service(dialect: str, service: bytes) -> None:
    found = route(request(dialect, service, b"a" * 70_000, b""))
    assert (found.kind, found.shard, found.service, found.dialect) == (Kind.SHARD, shard_of(service, 8), service, dialect)
    ready = route(worker_ready(dialect, service))  # type: ignore[arg-type]
    assert (ready.kind, ready.shard, ready.service, ready.dialect) == (Kind.WORKER, shard_of(service, 8), service, dialect)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_questions_about_a_service_go_to_its_shard_and_others_to_all(dialect: str) -> None:
    for name in (b"mmi.service", b"mmi.describe", b"mmi.workers", b"mmi.drain", b"mmi.disable", b"mmi.enable"):
        found = route(request(dialect, name, b"geo.nearest"))
        assert (found.kind, found.shard) == (Kind.SHARD, shard_of(b"geo.nearest", 8))
    allowed = route(request(dialect, b"mmi.allowed", b"call", b"ann", b"total"))
    assert (allowed.kind, allowed.shard) == (Kind.SHARD, shard_of(b"total", 8))
    for name in (b"mmi.services", b"mmi.workers", b"mmi.stats", b"mmi.dlq"):
        merged = route(request(dialect, name, b""))
        assert (merged.kind, merged.service, merged.body) == (Kind.MERGE, name, (b"",))
        assert merged.request == (ID if dialect == V03 else b"")
    for name in (b"mmi.dlq.show", b"mmi.dlq.drop", b"mmi.dlq.retry"):
        assert route(request(dialect, name, b"17")).kind is Kind.FIND
    hello = route(request(dialect, b"mmi.protocol", b"0.3"))
    assert (hello.kind, hello.dialect, hello.body) == (Kind.HELLO, dialect, (b"0.3",))


def test_what_names_no_service_follows_the_peer() -> None:
    assert route(client_cancel(ID)).kind is Kind.EVERYWHERE
    assert route(client_heartbeat()).kind is Kind.EVERYWHERE
    for dialect in DIALECTS:
        assert route(worker_heartbeat(dialect)) == Route(Kind.SHARD)


@pytest.mark.parametrize("head", [[b"MDPC02", b"\x01"], [b"", b"MDPC01"], [b"MDPC03\x01" + ID]])
def test_a_request_without_a_body_is_refused_by_the_shard_of_its_service(head: list[bytes]) -> None:
    found = route([*head, b"geo.nearest"])
    assert (found.kind, found.shard, found.service) == (Kind.SHARD, shard_of(b"geo.nearest", 8), b"geo.nearest")


INVALID = [
    [b""],
    [b"", b""],
    [b"", b"MDPC01"],
    [b"MDPC02", b"\x01"],
    [b"MDPC02", b"\x09", b"echo"],
    [b"MDPW02", b"\x01"],
    [b"", b"MDPW01", b"\x01"],
    [b"MDPC03\x01" + ID],
    [b"MDPC03\x01", b"echo", b"", b""],
    [b"MDPW03\x01"],
    [b"\xff" * 300],
    [b"", b"", b"", b"", b""],
]


@pytest.mark.parametrize("frames", INVALID)
def test_invalid_messages_go_to_a_shard_which_refuses_them(frames: list[bytes]) -> None:
    assert route(frames) == Route(Kind.SHARD)
