"""Services and workers: limits on names, routes, forgetting (MMI-07, fault B3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mdp.access.service_policies import ServicePolicies
from mdp.broker.limits import BrokerOptions
from mdp.broker.workers.directory import Directory
from mdp.broker.workers.policies import HIGHEST

if TYPE_CHECKING:
    from mdp.broker.requests.records import Service


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


def presence_of(service: Service) -> tuple[float | None, bool]:
    """Return since when a service has no workers, and whether it ever had one."""
    return service.absent_since, service.offered


def test_a_service_is_absent_from_when_it_was_asked_for_until_a_worker_comes() -> None:
    book = directory()
    service = book.open(b"echo", 3)
    assert service is not None
    assert presence_of(service) == (3, False)
    assert book.open(b"echo", 9) is service
    assert service.absent_since == 3
    first, second = book.join(service, b"W", "0.1", 1, 4), book.join(service, b"V", "0.1", 1, 5)
    assert presence_of(service) == (None, True)
    book.leave(first, 6)
    assert presence_of(service) == (None, True)
    assert book.routes == {b"echo": service}
    book.leave(second, 7)
    assert (presence_of(service), book.workers) == ((7, True), {})


def test_a_worker_that_says_its_concurrency_knows_ping() -> None:
    """MDP/0.3: it knows PING and RECALL."""
    book = directory()
    service = book.open(b"echo", 0)
    assert service is not None
    plain, other = book.join(service, b"W", "0.3", 8, 0), book.join(service, b"V", "0.3", 8, 0, 2)
    assert (plain.concurrency, plain.knows_ping, plain.credit) == (8, False, 8)
    assert (other.concurrency, other.knows_ping, other.credit) == (2, True, 8)


def test_workers_of_one_connection_are_counted_until_the_last_leaves() -> None:
    """CHN-12."""
    book = directory()
    service = book.open(b"echo", 0)
    assert service is not None
    peers = [b"\0\0\0\0" + bytes([number]) + b"conn" for number in (1, 2)]
    workers = [book.join(service, peer, "0.3", 1, 0) for peer in peers]
    alone = book.join(service, b"conn", "0.3", 1, 0)
    assert [book.channels_of(peer) for peer in (*peers, b"conn", b"\0\0\0\0\x03other")] == [2, 2, 0, 0]
    book.leave(workers[0], 0)
    assert book.channels_of(peers[1]) == 1
    book.leave(workers[1], 0)
    assert (book.channels_of(peers[1]), book.channels) == (0, {})
    assert book.workers == {b"conn": alone}


def test_routes_that_end_are_counted() -> None:
    book = directory()
    service = book.open(b"echo", 0)
    assert service is not None
    assert book.closed_routes == 0
    worker = book.join(service, b"W", "0.1", 1, 0)
    book.update_routes(service, 0)
    assert book.closed_routes == 0
    book.leave(worker, 0)
    assert book.closed_routes == 1
    book.update_routes(service, 0)
    assert book.closed_routes == 1


def test_requests_of_a_service_with_policies_are_placed_one_by_one() -> None:
    """Its route is found by name only."""
    book = directory()
    book.own_policies = ServicePolicies(
        {"policy": [{"services": ["pay"], "rate": {"per_s": 5, "burst": 1}}, {"services": ["mail"], "priority_max": "normal"}]}
    )
    pay, mail, echo = (book.open(name, 0) for name in (b"pay", b"mail", b"echo"))
    assert pay is not None
    assert mail is not None
    assert echo is not None
    assert pay.policies is not None
    assert pay.policies.bucket is not None
    assert (mail.policies, echo.policies) == (None, None)
    assert [service.priority_max for service in (pay, mail, echo)] == [HIGHEST, 0, HIGHEST]
    for service in (pay, mail):
        book.join(service, b"W" + service.name, "0.3", 1, 0)
    assert book.routes == {b"pay": pay, b"mail": mail}
    assert set(book.routes_encoded.values()) == {mail}
    book.own_policies = None
    book.apply_own_policies(pay)
    shown: tuple[object, int] = (pay.policies, pay.priority_max)
    assert shown == (None, HIGHEST)
    book.update_routes(pay, 0)
    assert set(book.routes_encoded.values()) == {mail, pay}
    book.own_policies = ServicePolicies({"policy": [{"services": ["pay"], "rate": {"per_s": 5, "burst": 1}}]})
    book.apply_own_policies(pay)
    book.update_routes(pay, 0)
    assert (set(book.routes_encoded.values()), book.routes[b"pay"], book.closed_routes) == ({mail}, pay, 1)
    book.update_routes(pay, 0)
    assert book.closed_routes == 1


def test_free_capacity_is_that_of_workers_with_credit() -> None:
    """Borrowed workers grant none, so that nothing is lent twice."""
    book = directory()
    assert book.name == b""
    own, borrowed = book.open(b"own", 0), book.open(b"borrowed", 0)
    assert own is not None
    assert borrowed is not None
    first, second = book.join(own, b"W", "0.3", 3, 0), book.join(own, b"V", "0.3", 1, 0)
    book.join(borrowed, b"U", "0.3", 0, 0)
    first.in_flight[b"1"] = second.in_flight[b"2"] = second.in_flight[b"3"] = None  # type: ignore[assignment]
    assert list(book.capacities()) == [(b"own", 2)]


def test_limits_on_names_count_those_that_are_offered_and_those_that_are_not() -> None:
    """MMI-07, fault B3."""
    book = directory(services_max=4, absent_max=1)
    for name in (b"a", b"b"):
        service = book.open(name, 0)
        assert service is not None
        book.join(service, b"W" + name, "0.1", 1, 0)
    assert book.open(b"c", 0, absent=True) is not None
    assert book.open(b"d", 0, absent=True) is None
    assert book.open(b"d", 0) is not None
    assert book.open(b"e", 0) is None
    assert len(book.services) == 4


@pytest.mark.parametrize(("absent_max", "left"), [(1, {b"b"}), (2, {b"a", b"b"})])
def test_a_service_whose_workers_have_left_counts_among_those_nobody_offers(absent_max: int, left: set[bytes]) -> None:
    book = directory(absent_max=absent_max)
    service = book.open(b"a", 0)
    assert service is not None
    book.leave(book.join(service, b"W", "0.1", 1, 0), 0)
    assert book.open(b"b", 0, absent=True) is not None
    assert set(book.services) == left


def test_what_was_forgotten_is_counted_once_for_whatever_reason() -> None:
    book = directory(services_max=1, service_idle_ms=1000)
    for name in (b"a", b"b"):
        service = book.open(name, 0)
        assert service is not None
        book.leave(book.join(service, b"W", "0.1", 1, 0), 0)
    assert set(book.services) == {b"b"}
    assert (book.forget_idle(0.9), book.forget_idle(0.9)) == (1, 0)
    assert (book.forget_idle(1.0), book.forget_idle(1.0)) == (1, 0)
    absent = book.open(b"c", 5, absent=True)
    assert absent is not None
    book.update_routes(absent, 5)
    assert (book.services, book.forget_idle(5)) == ({}, 1)
    book.update_routes(absent, 5)  # it is gone
    assert book.forget_idle(5) == 0


def test_an_idle_service_counts_from_when_it_became_idle_and_not_when_it_is_in_use_again() -> None:
    book = directory(service_idle_ms=1000)
    service = book.open(b"echo", 0)
    assert service is not None
    book.leave(book.join(service, b"W", "0.1", 1, 0), 5)
    book.update_routes(service, 6)
    assert book.forget_idle(5.9) == 0
    worker = book.join(service, b"W", "0.1", 1, 6)
    assert book.forget_idle(100) == 0
    book.leave(worker, 100)
    assert book.forget_idle(100.9995) == 0
    assert book.forget_idle(101) == 1


def test_a_closed_directory_has_no_routes_for_those_that_come() -> None:
    book = directory()
    assert book.accepting
    first, second = book.open(b"a", 0), book.open(b"b", 0)
    assert first is not None
    assert second is not None
    book.join(first, b"W", "0.1", 1, 0)
    book.close(0)
    assert not book.accepting
    book.join(first, b"V", "0.1", 1, 0)
    assert (book.routes, book.closed_routes) == ({}, 1)
