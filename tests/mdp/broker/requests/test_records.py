"""Queue of a service, and the line of workers with credit."""

from __future__ import annotations

import random
from collections import deque
from math import inf

import pytest

from mdp.broker.requests.records import Request, RequestExtras, RequestQueue, Service, SharedExecution, Worker


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
        queue.push(client, make(client, tail))
    assert (queue.count, queue.size, queue.waiting(b"A"), queue.waiting(b"C")) == (4, 10, 3, 0)
    order = []
    while (request := queue.pop()) is not None:
        order.append(request.payload)
    assert order == [b"1", b"333", b"22", b"4444"]
    assert (queue.count, queue.size) == (0, 0)


def test_what_comes_back_is_first() -> None:
    queue = RequestQueue()
    first, second = make(b"A"), make(b"B")
    queue.push(b"C", make(b"C"))
    queue.push_front(second)
    queue.push_front(first)
    assert queue.pop() is first
    assert queue.pop() is second


def test_dropped_requests_are_passed_over() -> None:
    queue = RequestQueue()
    requests = [make(b"A"), make(b"A"), make(b"B")]
    for request in requests:
        queue.push(request.client or b"", request)
    cancel(queue, requests[0])
    cancel(queue, requests[2])
    assert [*queue] == [requests[1]]
    assert queue.pop() is requests[1]
    assert queue.pop() is None


def test_dropping_many_keeps_no_memory() -> None:
    """A client that sends and cancels for ever leaves nothing behind, though somebody else waits all the time."""
    queue = RequestQueue()
    queue.push(b"B", make(b"B"))
    for _ in range(10_000):
        request = make(b"A")
        queue.push(b"A", request)
        cancel(queue, request)
    assert queue.waiting(b"A") < 200
    assert queue.count == 1


def test_expired_are_found_at_the_head_of_the_queue_of_each_client() -> None:
    queue = RequestQueue()
    old, new, other, back = make(b"A", expires=1), make(b"A", expires=5), make(b"B", expires=2), make(b"C", expires=1)
    for request in (old, new, other):
        queue.push(request.client or b"", request)
    queue.push_front(back)
    assert queue.expired(3) == [back, old, other]
    assert queue.expired(0) == []


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
    queue.push(b"B", fresh)
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
    queue, request, fresh = RequestQueue(), make(b"A"), make(b"B")
    queue.push_lost(request, 5.0)
    queue.push(b"B", fresh)
    cancel(queue, request)
    assert [*queue] == [fresh]
    assert queue.pop(0.0) is fresh
    assert queue._dead == 0


def test_dropped_entries_are_removed_when_they_are_more_than_64_and_more_than_the_others() -> None:
    queue = RequestQueue()
    kept = [make(b"A"), make(b"B"), make(b"C")]
    queue.push_lost(kept[0], 1.0)
    queue.push_front(kept[1])
    queue.push(b"C", kept[2])
    lost, front, own, other = (make(b"D") for _ in range(4))
    queue.push_lost(lost, 2.0)
    queue.push_front(front)
    queue.push(b"C", own)
    queue.push(b"E", other)
    many = [make(b"C") for _ in range(61)]
    for request in many:
        queue.push(b"C", request)
    for request in (lost, front, own, other, *many[:-1]):
        cancel(queue, request)
    assert (queue._dead, len(queue.lost), len(queue._front), len(queue._rotation)) == (64, 2, 2, 2)
    cancel(queue, many[-1])
    assert queue._dead == 0
    assert ([*queue.lost], [*queue._front], [*queue._rotation], [*queue._client_queues]) == ([(1.0, kept[0])], [kept[1]], [b"C"], [b"C"])
    assert [*queue._client_queues[b"C"].requests] == [kept[2]]
    assert queue.waiting(b"C") == 1
    assert [*queue] == kept


def test_as_many_dropped_entries_as_others_stay() -> None:
    queue = RequestQueue()
    requests = [make(b"A") for _ in range(201)]
    for request in requests:
        queue.push(b"A", request)
    for request in requests[:100]:
        cancel(queue, request)
    assert (queue._dead, queue.count) == (100, 101)
    cancel(queue, requests[100])
    assert (queue._dead, queue.count) == (0, 100)


def test_a_queue_whose_last_request_is_dropped_keeps_nothing() -> None:
    queue = RequestQueue()
    lost, front, own = make(b"A"), make(b"B"), make(b"C")
    queue.push_lost(lost, 1.0)
    queue.push_front(front)
    queue.push(b"C", own)
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
            queue.push(client, request)
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
