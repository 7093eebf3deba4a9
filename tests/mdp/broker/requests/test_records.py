"""Queue of a service, and the line of workers with credit."""

from __future__ import annotations

import random
from collections import deque

from mdp.broker.requests.records import Request, RequestQueue, Service, Worker


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
