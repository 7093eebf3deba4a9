"""Services and workers: limits on names, routes, forgetting (MMI-07, fault B3)."""

from __future__ import annotations

from mdp.broker.limits import BrokerOptions
from mdp.broker.workers.directory import Directory


def directory(**options: int) -> Directory:
    return Directory(BrokerOptions(**options))  # type: ignore[arg-type]


def test_routes_are_services_with_workers() -> None:
    book = directory()
    service = book.open(b"echo", 0)
    assert service is not None
    assert book.routes == {}
    worker = book.join(service, b"W", "0.1", 1, 0)
    assert book.routes == {b"echo": service}
    assert book.routes_encoded == {b"\x01\x04echo": service, b"\x01\x04echo\x01\x00": service}
    service.enabled = False
    book.update_routes(service, 0)
    assert book.routes == book.routes_encoded == {}
    service.enabled = True
    book.update_routes(service, 0)
    book.leave(worker, 1)
    assert book.routes == book.routes_encoded == {}
    assert service.absent_since == 1


def test_closing_takes_all_routes_away() -> None:
    book = directory()
    service = book.open(b"echo", 0)
    assert service is not None
    book.join(service, b"W", "0.1", 1, 0)
    book.close(0)
    assert book.routes == book.routes_encoded == {}


def test_a_new_name_takes_the_place_of_the_longest_idle_one() -> None:
    book = directory(services_max=3)
    for at, name in enumerate((b"a", b"b", b"c")):
        service = book.open(name, at)
        assert service is not None
        book.leave(book.join(service, b"W" + name, "0.1", 1, at), at)
    assert book.open(b"d", 9) is not None
    assert set(book.services) == {b"b", b"c", b"d"}


def test_services_in_use_are_not_pushed_out() -> None:
    book = directory(services_max=2)
    for name in (b"a", b"b"):
        service = book.open(name, 0)
        assert service is not None
        book.join(service, b"W" + name, "0.1", 1, 0)
    assert book.open(b"c", 0) is None
    assert set(book.services) == {b"a", b"b"}


def test_names_nobody_offers_have_a_limit_of_their_own() -> None:
    book = directory(absent_max=2)
    for name in (b"a", b"b"):
        assert book.open(name, 0, absent=True) is not None
    assert book.open(b"c", 0, absent=True) is None
    assert book.open(b"c", 0) is not None


def test_idle_services_are_forgotten_after_their_time() -> None:
    book = directory(service_idle_ms=1000)
    kept = book.open(b"kept", 0)
    gone = book.open(b"gone", 0)
    assert kept is not None
    assert gone is not None
    book.join(kept, b"W1", "0.1", 1, 0)
    book.leave(book.join(gone, b"W2", "0.1", 1, 0), 5)
    assert book.forget_idle(5.9) == 0
    assert book.forget_idle(6.1) == 1
    assert set(book.services) == {b"kept"}


def test_a_service_an_operator_took_out_is_remembered() -> None:
    book = directory(service_idle_ms=1000)
    service = book.open(b"echo", 0)
    assert service is not None
    service.enabled = False
    book.leave(book.join(service, b"W", "0.1", 1, 0), 0)
    assert book.forget_idle(100) == 0
