"""Queues with priorities and delays: turns of classes, what was dropped, what has expired (POL)."""

from __future__ import annotations

from math import inf

from mdp.broker.requests.policy_queue import SHARE, PolicyQueue
from mdp.broker.requests.records import Request, RequestExtras, RequestQueue

HIGH, NORMAL, LOW = 1, 0, -1


def request(number: int, priority: int = NORMAL, expires: float = inf, client: bytes = b"c") -> Request:
    made = Request()
    made.client, made.payload, made.number, made.expires, made.extras = client, b"x" * number, number, expires, None
    if priority:
        made.extras = RequestExtras()
        made.extras.priority = priority
    return made


def filled(**counts: int) -> PolicyQueue:
    """Return a queue with so many requests of each class, of a client each."""
    queue = PolicyQueue()
    for at, (name, count) in enumerate(counts.items()):
        for number in range(count):
            queue.push(b"%d" % at, [request(number, {"high": HIGH, "normal": NORMAL, "low": LOW}[name], client=b"%d" % at)])
    return queue


def turns(queue: PolicyQueue, count: int) -> str:
    """Return the classes of the next requests."""
    found = ""
    for _ in range(count):
        given = queue.pop()
        assert given is not None
        found += "NHL"[given.extras.priority if given.extras is not None else 0]
    return found


def drop(queue: PolicyQueue, *requests: Request) -> None:
    for one in requests:
        queue.drop(one)
        one.client, one.payload = None, b""


def test_each_class_that_waits_gets_a_turn_after_as_many_of_higher_ones() -> None:
    assert SHARE == 8
    assert turns(filled(high=40, normal=40, low=40), 27) == "HHHHHHHH" + "LN" + "HHHHHHH" + "L" + "H" + "N" + "HHHHHH" + "L"
    assert turns(filled(normal=10, low=2), 11) == "NNNNNNNN" + "L" + "NN"


def test_a_class_counts_only_while_it_waits() -> None:
    queue = filled(high=40)
    assert turns(queue, 7) == "H" * 7
    queue.push(b"low", [request(1, LOW)])
    assert turns(queue, 9) == "HHHHHHHHL"


def test_a_queue_takes_over_what_a_plain_one_has() -> None:
    plain = RequestQueue()
    first, second, third, lost = (request(number) for number in range(1, 5))
    plain.push(b"c", [first])
    plain.push(b"c", [second])
    plain.push_front(third)
    plain.push_lost(lost, 5.0)
    queue = PolicyQueue.of(plain)
    assert PolicyQueue.of(queue) is queue
    queue.push(b"c", [request(9, HIGH)])
    assert (queue.count, queue.size, queue.waiting(b"c"), queue.waiting(b"d")) == (5, 1 + 2 + 3 + 4 + 9, 3, 0)
    assert [one.number for one in queue] == [4, 3, 9, 1, 2]
    assert [given.number for given in iter(lambda: queue.pop(6.0), None)] == [4, 3, 9, 1, 2]
    assert (queue.count, queue.size) == (0, 0)


def test_delayed_requests_come_in_front_when_their_time_has_come() -> None:
    queue = PolicyQueue()
    assert queue.next_delayed_at == inf
    for number, at in ((1, 10.0), (2, 20.0), (3, 30.0)):
        queue.push_delayed(request(number), at)
    assert (queue.next_delayed_at, queue.count, queue.size, queue.pop()) == (10.0, 3, 6, None)
    queue.release_delayed(10.0)
    queue.push(b"c", [request(4, HIGH)])
    assert queue.next_delayed_at == 20.0
    assert [given.number for given in iter(queue.pop, None)] == [1, 4]
    queue.release_delayed(31.0)
    assert [given.number for given in iter(queue.pop, None)] == [2, 3]
    assert queue.next_delayed_at == inf


def test_a_delayed_request_that_was_dropped_holds_up_nothing() -> None:
    queue = PolicyQueue()
    gone, kept = request(1), request(2)
    queue.push_delayed(gone, 10.0)
    queue.push_delayed(kept, 20.0)
    drop(queue, gone)
    assert list(queue) == [kept]
    queue.release_delayed(0.0)
    assert queue.next_delayed_at == 20.0
    queue.release_delayed(20.0)
    assert queue.pop() is kept


def test_when_the_last_request_was_dropped_nothing_is_left() -> None:
    queue = PolicyQueue()
    requests = [request(number, priority) for number, priority in enumerate((HIGH, NORMAL, LOW))]
    for one in requests:
        queue.push(b"c", [one])
    delayed = request(4)
    queue.push_delayed(delayed, 9.0)
    drop(queue, *requests, delayed)
    assert (queue.count, queue.size, queue.next_delayed_at, list(queue)) == (0, 0, inf, [])
    assert [queue.waiting(b"c"), queue.pop()] == [0, None]
    for priority in (LOW, NORMAL, HIGH):
        queue.push(b"c", [request(7, priority)])
    assert turns(queue, 3) == "HNL"
    assert queue.pop() is None


def test_many_dropped_requests_are_cleared_out_of_all_classes_and_the_others_stay_in_order() -> None:
    queue = PolicyQueue()
    kept: list[Request] = []
    gone: list[Request] = []
    for number in range(90):
        for priority in (HIGH, NORMAL, LOW):
            one = request(number, priority, client=b"%d" % priority)
            queue.push(b"%d" % priority, [one])
            (kept if number == 50 else gone).append(one)
    for number in range(90):
        delayed = request(number)
        queue.push_delayed(delayed, float(number))
        (kept if number == 50 else gone).append(delayed)
    for priority in (HIGH, NORMAL, LOW):
        gone.append(request(1, priority, client=b"gone"))
        queue.push(b"gone", [gone[-1]])
    drop(queue, *gone)
    queue.tidy()
    assert sorted(map(id, queue)) == sorted(map(id, kept))
    assert sum(len([*waiting]) for queues in queue._queues for waiting in queues.values()) == 3
    assert queue.next_delayed_at == 50.0
    assert turns(queue, 3) == "HNL"
    queue.release_delayed(50.0)
    assert queue.pop() is kept[-1]
    assert (queue.pop(), queue.count, queue.size) == (None, 0, 0)


def test_a_few_dropped_requests_stay_where_they_are() -> None:
    queue = PolicyQueue()
    gone = request(1)
    queue.push_delayed(gone, 5.0)
    queue.push(b"c", [request(2)])
    drop(queue, gone)
    queue.tidy()
    assert queue.next_delayed_at == 5.0


def test_what_has_expired_is_found_in_each_class_and_among_the_delayed_once() -> None:
    queue = PolicyQueue()
    times = {HIGH: (1.0, 2.0, 9.0), NORMAL: (1.0, 3.0), LOW: (2.0,)}
    for priority, ends in times.items():
        for end in ends:
            queue.push(b"%d" % priority, [request(1, priority, end, b"%d" % priority)])
    front, early, late = request(1, expires=1.5), request(1, expires=2.0), request(2, expires=2.5)
    queue.push_front(front)
    queue.push_delayed(early, 1.0)
    queue.push_delayed(late, 1.0)
    found = queue.expired(2.0, 9)
    assert sorted(one.expires for one in found) == [1.0, 1.0, 1.5, 2.0, 2.0, 2.0]
    assert len(set(map(id, found))) == 6
    drop(queue, early)
    assert early not in queue.expired(2.0, 9)
