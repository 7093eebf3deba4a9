"""Queue of a service, and the line of workers with credit."""

from __future__ import annotations

import random
from collections import deque
from math import inf
from typing import TYPE_CHECKING

import pytest

from mdp.broker.requests.records import Request, RequestExtras, RequestQueue, Service, SharedExecution, Worker
from mdp.broker.workers.policies import HIGHEST
from mdp.wire.message_runs import NO_OPTIONS
from mdp.wire.size_limits import ANY_SIZE

if TYPE_CHECKING:
    from mdp.wire.commands import Dialect


def make(client: bytes, tail: bytes = b"x", expires: float = 1e9) -> Request:
    request = Request()
    request.client = client
    request.payload = tail
    request.expires, request.extras = expires, None
    return request


def cancel(queue: RequestQueue, request: Request) -> None:
    queue.drop(request)
    request.client = None
    request.payload = b""
    queue.tidy()


def test_clients_take_turns_and_keep_their_order() -> None:
    queue = RequestQueue()
    tails = [(b"A", b"1"), (b"A", b"22"), (b"B", b"333"), (b"A", b"4444")]
    for client, tail in tails:
        queue.push(client, [make(client, tail)])
    assert (queue.count, queue.size, queue.waiting(b"A"), queue.waiting(b"C")) == (4, 10, 3, 0)
    order = []
    while (request := queue.pop()) is not None:
        order.append(request.payload)
    assert order == [b"1", b"333", b"22", b"4444"]
    assert (queue.count, queue.size) == (0, 0)


def test_each_of_three_clients_has_its_turn_before_the_first_has_another() -> None:
    queue = RequestQueue()
    for client in (b"A", b"A", b"B", b"B", b"C", b"C"):
        queue.push(client, [make(client)])
    order = []
    while (request := queue.pop()) is not None:
        order.append(request.client)
    assert order == [b"A", b"B", b"C"] * 2


def test_what_comes_back_is_first() -> None:
    queue = RequestQueue()
    first, second = make(b"A"), make(b"B")
    queue.push(b"C", [make(b"C")])
    queue.push_front(second)
    queue.push_front(first)
    assert queue.pop() is first
    assert queue.pop() is second


def test_dropped_requests_are_passed_over() -> None:
    queue = RequestQueue()
    requests = [make(b"A"), make(b"A"), make(b"B")]
    for request in requests:
        queue.push(request.client or b"", [request])
    cancel(queue, requests[0])
    cancel(queue, requests[2])
    assert [*queue] == [requests[1]]
    assert queue.pop() is requests[1]
    assert queue.pop() is None


def test_dropping_many_keeps_no_memory() -> None:
    """A client that sends and cancels for ever leaves nothing behind, though somebody else waits all the time."""
    queue = RequestQueue()
    queue.push(b"B", [make(b"B")])
    for _ in range(10_000):
        request = make(b"A")
        queue.push(b"A", [request])
        cancel(queue, request)
    assert queue.waiting(b"A") < 200
    assert queue.count == 1


def test_expired_are_found_at_the_head_of_the_queue_of_each_client() -> None:
    queue = RequestQueue()
    old, new, other, back = make(b"A", expires=1), make(b"A", expires=5), make(b"B", expires=2), make(b"C", expires=1)
    for request in (old, new, other):
        queue.push(request.client or b"", [request])
    queue.push_front(back)
    assert queue.expired(3, 9) == [back, old, other]
    assert queue.expired(0, 9) == []


def test_expired_are_searched_past_dropped_ones_and_up_to_the_first_with_time_left() -> None:
    queue = RequestQueue()
    dropped, old, late, behind = make(b"A", expires=1), make(b"A", expires=1), make(b"A", expires=5), make(b"A", expires=1)
    for request in (dropped, old, late, behind):
        queue.push(b"A", [request])
    cancel(queue, dropped)
    assert queue.expired(3, 9) == [old]


def test_a_request_has_no_rare_property_of_itself() -> None:
    extras = RequestExtras()
    assert (extras.deadline, extras.sent_deadline, extras.lost_at) == (inf, inf, -inf)
    assert (extras.once, extras.wait, extras.streamed, extras.progress) == (False, False, False, False)
    assert (extras.failures, extras.priority, extras.options, extras.parts, extras.lost) == (0, 0, b"", b"", [])
    assert (extras.key, extras.execution, extras.dead_letter, extras.user) == (None, None, None, None)


def test_an_execution_begins_without_an_answer_and_can_be_followed() -> None:
    execution = SharedExecution((b"echo", b"key"), b"digest")
    assert (execution.name, execution.digest, execution.shared) == ((b"echo", b"key"), b"digest", True)
    assert (execution.request, execution.reply, execution.parts, execution.size, [*execution.followers]) == (None, None, [], 0, [])


@pytest.mark.parametrize("rare", [True, False])
def test_a_lost_request_is_for_workers_heard_from_since_until_it_is_released(rare: bool) -> None:
    """MDP-37."""
    queue, request, fresh = RequestQueue(), make(b"A", b"12345"), make(b"B", b"1")
    request.extras = RequestExtras() if rare else None
    queue.push(b"B", [fresh])
    queue.push_lost(request, 5.0)
    assert (queue.count, queue.size, [*queue]) == (2, 6, [request, fresh])
    assert queue.pop(5.0) is fresh
    assert queue.pop(5.0) is None
    assert queue.pop(5.1) is request
    assert (queue.count, queue.size, queue.pop(5.1)) == (0, 0, None)
    queue.push_lost(request, 5.0)
    queue.release(2.0, 6.9)
    assert queue.pop() is None
    queue.release(2.0, 7.0)
    assert [*queue.lost] == []
    assert queue.pop() is request


def test_what_is_put_back_is_first_for_the_same_workers_as_before() -> None:
    queue, request = RequestQueue(), make(b"A")
    request.extras = RequestExtras()
    queue.push_lost(request, 5.0)
    assert queue.pop(6.0) is request
    queue.push_lost(make(b"B"), 5.5)
    queue.put_back(request)
    assert (queue.count, queue.size) == (2, 2)
    assert queue.pop(5.0) is None
    assert queue.pop(5.1) is request
    queue.put_back(request)
    queue.release(0.0, 5.0)
    assert queue.pop() is request
    queue.put_back(request)  # released before: for any worker
    assert queue.pop() is request
    assert queue.pop(8.0) is not request
    queue.push_lost(request, 7.0)
    assert queue.pop(8.0) is request
    queue.push_front(request)
    assert queue.pop() is request
    queue.put_back(request)
    assert queue.pop() is request


def test_lost_requests_are_released_in_their_order_before_those_at_the_front() -> None:
    queue, lost = RequestQueue(), [make(b"A", b"%d" % number) for number in range(3)]
    for number, request in enumerate(lost):
        queue.push_lost(request, float(number))
    front = make(b"B")
    queue.push_front(front)
    queue.release(1.0, 2.0)
    assert [queue.pop() for _ in range(4)] == [lost[0], lost[1], front, None]
    assert queue.pop(2.5) is lost[2]


def test_a_lost_request_that_was_dropped_is_passed_over_by_every_worker() -> None:
    queue, request, later, fresh = RequestQueue(), make(b"A"), make(b"A"), make(b"B")
    queue.push_lost(request, 5.0)
    queue.push_lost(later, 9.0)
    queue.push(b"B", [fresh])
    cancel(queue, request)
    assert [*queue] == [later, fresh]
    assert queue.pop(0.0) is fresh
    assert queue._dead == 0


def test_the_request_that_was_lost_first_is_for_a_worker_not_heard_from_since_the_last() -> None:
    queue, first, last = RequestQueue(), make(b"A"), make(b"A")
    queue.push_lost(first, 1.0)
    queue.push_lost(last, 5.0)
    assert [queue.pop(3.0), queue.pop(3.0)] == [first, None]


def test_dropped_entries_are_removed_when_they_are_more_than_64_and_more_than_the_others() -> None:
    queue = RequestQueue()
    kept = [make(b"A"), make(b"B"), make(b"C")]
    queue.push_lost(kept[0], 1.0)
    queue.push_front(kept[1])
    queue.push(b"C", [kept[2]])
    lost, front, own, other = (make(b"D") for _ in range(4))
    queue.push_lost(lost, 2.0)
    queue.push_front(front)
    queue.push(b"C", [own])
    queue.push(b"E", [other])
    many = [make(b"C") for _ in range(61)]
    for request in many:
        queue.push(b"C", [request])
    for request in (lost, front, own, other, *many[:-1]):
        cancel(queue, request)
    assert (queue._dead, len(queue.lost), len(queue._front), len(queue._rotation)) == (64, 2, 2, 2)
    cancel(queue, many[-1])
    assert queue._dead == 0
    assert ([*queue.lost], [*queue._front], [*queue._rotation], [*queue._client_queues]) == ([(1.0, kept[0])], [kept[1]], [b"C"], [b"C"])
    assert [*queue._client_queues[b"C"]] == [kept[2]]
    assert queue.waiting(b"C") == 1
    assert [*queue] == kept


def test_as_many_dropped_entries_as_others_stay() -> None:
    queue = RequestQueue()
    requests = [make(b"A") for _ in range(200)]
    for request in requests:
        queue.push(b"A", [request])
    for request in requests[:100]:
        cancel(queue, request)
    assert (queue._dead, queue.count) == (100, 100)
    cancel(queue, requests[100])
    assert (queue._dead, queue.count) == (0, 99)


def test_a_queue_whose_last_request_is_dropped_keeps_nothing() -> None:
    queue = RequestQueue()
    lost, front, own = make(b"A"), make(b"B"), make(b"C")
    queue.push_lost(lost, 1.0)
    queue.push_front(front)
    queue.push(b"C", [own])
    for request in (own, front, lost):
        cancel(queue, request)
    assert (queue.count, queue.size, queue._dead, queue.waiting(b"C")) == (0, 0, 0, 0)
    assert [len(held) for held in (queue.lost, queue._front, queue._client_queues, queue._rotation)] == [0, 0, 0, 0]


def test_random_walk_against_a_plain_model() -> None:
    source = random.Random(7)
    queue = RequestQueue()
    live: list[Request] = []
    lanes: dict[bytes, deque[Request]] = {}
    front: deque[Request] = deque()
    for _ in range(20_000):
        step = source.random()
        alive = [*front, *(r for lane in lanes.values() for r in lane)]
        if step < 0.45:
            client = bytes([65 + source.randrange(5)])
            request = make(client, source.randbytes(source.randrange(1, 9)))
            queue.push(client, [request])
            lanes.setdefault(client, deque()).append(request)
        elif step < 0.5:
            request = make(b"Z", b"zz")
            queue.push_front(request)
            front.appendleft(request)
        elif step < 0.7 and alive:
            request = source.choice(alive)
            cancel(queue, request)
            if request in front:
                front.remove(request)
            else:
                next(lane for lane in lanes.values() if request in lane).remove(request)
        else:
            taken = queue.pop()
            assert (taken is None) == (not alive)
            if front:
                assert taken is front.popleft()
            elif taken is not None:  # the oldest of some client; whose turn it is, other tests show
                assert taken is lanes[taken.client or b""].popleft()
        live = [*front, *(r for lane in lanes.values() for r in lane)]
        assert queue.count == len(live)
        assert queue.size == sum(len(r.payload) for r in live)
    assert {id(r) for r in queue} == {id(r) for r in live}


def worker(service: Service, name: bytes, credit: int = 1) -> Worker:
    made = service.workers[name] = Worker(name, service, "0.3", credit, 0.0)
    service.mark_ready(made)
    return made


@pytest.mark.parametrize("dialect", ["0.3", "0.2"])
def test_a_new_worker_has_done_nothing_and_may_use_all_its_credit(dialect: Dialect) -> None:
    made = Worker(b"1", Service(b"echo"), dialect, 8, 5.0, 2)
    newest = dialect == "0.3"
    assert (made.credit, made.allowed, made.concurrency, made.list_from, made.list_to) == (8, 8, 2, 8, 8)
    assert (made.seen, made.since, made.beat_at, made.beat_s, made.expiry_s) == (5.0, 5.0, 5.0, 0.0, 0.0)
    assert (made.live, made.plain, made.is_v03, made.beats_busy) == (True, True, newest, newest)
    assert (made.stuck, made.small, made.version, made.knows_ping, made.pinged) == (False if newest else None, ANY_SIZE, "", False, False)
    assert (made.done, made.entries, made.in_flight, made.recalled) == (0, 0, {}, set())
    assert (made.ready_list, made.user, made.metadata) == (None, None, None)


def test_a_worker_processes_no_more_at_a_time_than_its_credit() -> None:
    assert [Worker(b"1", Service(b"echo"), "0.3", 8, 0.0, concurrency).concurrency for concurrency in (None, 7, 9)] == [8, 7, 8]


def test_a_new_service_has_nobody_and_its_frames_are_encoded() -> None:
    service = Service(b"echo")
    assert (service.encoded, service.route) == (b"\x01\x04echo", b"\x01\x04echo" + NO_OPTIONS)
    assert service.reply_01 == b"\x01\x00\x01\x06MDPC01\x01\x04echo"
    assert service.final_02 == b"\x01\x06MDPC02\x01\x01\x03\x01\x04echo"
    assert (service.enabled, service.offered, service.losses, service.absent_since) == (True, False, (-inf, -inf), None)
    assert (service.watched_s, service.paced, service.done) == (0.0, False, 0)
    assert (service.policies, service.priority_max) == (None, HIGHEST)
    assert (service._first, service._filled, service.next_worker()) == (0, 0, None)


@pytest.mark.parametrize(
    ("credit", "concurrency", "allowed", "in_flight", "place", "limits", "ahead"),
    [
        (32, 8, 32, 0, 0, (0, 2), False),
        (32, 8, 32, 7, 3, (6, 8), False),
        (32, 8, 32, 8, 4, (8, 10), True),
        (32, 8, 32, 31, 15, (30, 32), True),
        (100, 8, 100, 90, 15, (30, 100), True),
        (12, 3, 12, 1, 1, (1, 2), False),
        (32, 8, 5, 4, 2, (4, 5), False),
        (32, 8, 5, 5, None, (5, 32), False),
        (32, 8, 8, 8, None, (8, 32), False),
        (32, 8, 8, 9, None, (9, 32), True),
        (32, 8, 10, 12, None, (10, 32), True),
        (1, 1, 1, 0, 0, (0, 1), False),
        (1, 1, 1, 1, None, (1, 1), False),
    ],
)
def test_a_worker_is_in_the_ready_list_for_its_load(
    credit: int, concurrency: int, allowed: int, in_flight: int, place: int | None, limits: tuple[int, int], ahead: bool
) -> None:
    """Four lists for as many requests as it processes at a time; none without credit left."""
    for before in (True, False):
        service = Service(b"echo")
        one = service.workers[b"1"] = Worker(b"1", service, "0.3", credit, 0.0, concurrency)
        one.allowed, one.in_flight = allowed, {b"%d" % number: make(b"C") for number in range(in_flight)}
        if before and credit > 1:  # with a credit of 1 nobody is ahead
            service.ahead[one] = None
        service.mark_ready(one)
        assert (one.list_from, one.list_to, one in service.ahead) == (*limits, ahead)
        if place is None:
            assert (one.ready_list, service.next_worker()) == (None, None)
        else:
            assert one.ready_list is service.ready is service._ready_lists[place]
            assert (service.ready[0], one.entries, service._first) == (one, 1 << place, place)
            assert service.next_worker() is one


def test_a_worker_of_any_ready_list_is_found_after_there_was_none() -> None:
    service = Service(b"echo")
    one = service.workers[b"1"] = Worker(b"1", service, "0.3", 32, 0.0, 8)
    for load in (2, 0, 2, 0):
        one.allowed, one.in_flight = 32, {b"%d" % number: make(b"C") for number in range(load)}
        service.mark_ready(one)
        assert service.next_worker() is one
        one.allowed = 0
        service.mark_ready(one)
        assert service.next_worker() is None


def test_entries_of_workers_that_left_or_moved_are_cleared_out_of_a_ready_list_and_who_moved_may_return() -> None:
    service, lengths, entries = Service(b"echo"), [], 0
    stays = worker(service, b"stays", 8)
    stays.in_flight = {b"%d" % key: make(b"C") for key in range(2)}
    service.mark_ready(stays)
    for number in range(68):
        one = worker(service, b"%d" % number, 8)
        lengths.append(len(service._ready_lists[0]))
        one.in_flight = {b"%d" % key: make(b"C") for key in range(2)}
        service.mark_ready(one)
        service.leave(one)
        entries = one.entries
    assert lengths == [*range(2, 69), 1]
    assert (stays.entries, entries) == (1 << 1, 1 << 0 | 1 << 1)
    stays.in_flight = {}
    service.mark_ready(stays)
    assert service.next_worker() is stays


def test_each_of_three_workers_is_used_before_the_first_is_used_again() -> None:
    service = Service(b"echo")
    everybody = [worker(service, b"%d" % number, 32) for number in range(3)]
    chosen = []
    for number in range(3):
        one = service.next_worker()
        assert one is not None
        one.in_flight[b"%d" % number] = make(b"C")
        service.mark_used(one)
        chosen.append(one)
    assert chosen == everybody


def test_a_worker_that_gets_more_than_it_processes_at_a_time_is_ahead_until_it_leaves() -> None:
    service = Service(b"echo")
    one = service.workers[b"1"] = Worker(b"1", service, "0.3", 32, 0.0, 8)
    one.allowed = 10
    service.mark_ready(one)
    one.in_flight = {b"%d" % number: make(b"C") for number in range(10)}
    service.mark_used(one)
    assert ([*service.ahead], one.ready_list, one.list_from) == ([one], None, 10)
    service.leave(one)
    assert [*service.ahead] == []


def test_workers_take_turns_and_leave_the_line_without_credit() -> None:
    service = Service(b"echo")
    first, second = worker(service, b"1", 2), worker(service, b"2", 1)
    chosen = []
    for i in range(3):
        choice = service.next_worker()
        assert choice is not None
        choice.in_flight[b"%d" % i] = make(b"C")
        service.mark_used(choice)
        chosen.append(choice)
    assert chosen == [first, second, first]
    assert service.next_worker() is None
    assert first.ready_list is None


def test_a_thousand_workers_leave_without_a_search() -> None:
    """The line of workers keeps no more dead entries than live ones, beyond a few."""
    service = Service(b"echo")
    everybody = [worker(service, b"%d" % i) for i in range(1000)]
    for one in everybody[:999]:
        service.leave(one)
        assert len(service.ready) <= 2 * len(service.workers) + 2 * 64
    assert service.next_worker() is everybody[999]
    assert list(service.workers.values()) == [everybody[999]]


def test_what_workers_have_done_outlives_them() -> None:
    service = Service(b"echo")
    one = worker(service, b"1")
    one.done = 5
    service.leave(one)
    assert service.done == 5
    assert not one.live
    assert not one.is_v03
