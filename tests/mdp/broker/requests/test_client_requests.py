"""The requests of a client (mdp.broker.requests.client_requests): in whatever order they come and go, each is found while it is there."""

from __future__ import annotations

import random

import pytest

from mdp.broker.requests.client_requests import PART, PARTS, PIECE, REST, ClientQueue, OpenRequests
from mdp.broker.requests.records import Request, RequestQueue
from mdp.wire.commands import client_request
from tests.scenes.mdp_dispatcher import ECHO, Scene

CLIENT = b"C"
SEED = 5


def made(key: int) -> Request:
    request = Request()
    request.client, request.key, request.payload, request.client_queue = CLIENT, key.to_bytes(8, "big"), b"body", None
    return request


def opened(requests: OpenRequests, key: int) -> Request:
    request = made(key)
    part = requests.newest()
    part[request.key] = request
    request.client_requests = part
    return request


def closed(request: Request) -> None:
    del request.client_requests[request.key]


def test_requests_that_leave_in_order_leave_no_part_behind() -> None:
    requests = OpenRequests()
    waiting = [opened(requests, key) for key in range(5 * PART)]
    assert [len(part) for part in requests.parts] == [PART] * 5
    assert [len(requests), requests.get(b""), requests.get(7)] == [5 * PART, None, None]
    for key in range(5 * PART, 9 * PART):
        closed(waiting[key - 5 * PART])
        waiting.append(opened(requests, key))
    assert len(requests) == 5 * PART
    assert len(requests.parts) <= 6


def test_what_stays_long_moves_to_the_newest_part() -> None:
    """A long request must not keep the memory of the thousands that came with it."""
    requests = OpenRequests()
    stay = []
    for key in range(20 * PART):
        request = opened(requests, key)
        if key % PART:
            closed(request)
        else:
            stay.append(request)
    stay += [opened(requests, key) for key in range(20 * PART, 22 * PART)]
    assert len(requests.parts) <= 3
    assert len(requests) == len(stay)
    assert all(requests.get(request.key) is request and request.client_requests[request.key] is request for request in stay)
    assert {id(part) for part in requests.parts} == {id(request.client_requests) for request in stay}


def test_a_client_cannot_make_the_search_for_a_key_long() -> None:
    """Each CANCEL of a request that is not open asks every part."""
    requests, number, most = OpenRequests(), 0, 0
    for _ in range(PARTS * REST * 2):
        part = requests.newest()
        request = made(number)
        request.client_requests = part
        while requests.newest() is part:
            part[number] = request
            number += 1
        for key in list(part)[PART // REST + 1 :]:
            del part[key]
        most = max(most, len(requests.parts))
    assert PARTS < most <= PARTS * REST + 1


@pytest.mark.parametrize("ordered", [True, False])
def test_any_order_of_ids_and_of_ends(ordered: bool) -> None:
    source = random.Random(SEED)
    requests = OpenRequests()
    there: dict[bytes, Request] = {}
    for number in range(60_000):
        key = number if ordered else source.randrange(1 << 64)
        octets = key.to_bytes(8, "big")
        if octets > requests.highest:
            requests.highest = octets
        else:
            assert requests.has(octets) == (octets in there)
        there[octets] = opened(requests, key)
        if source.random() < 0.4:
            closed(there.pop(source.choice([octets, next(iter(there))])))
    assert {request.key: request for request in requests.values()} == there
    assert sorted((part[key].key for part, key in requests.entries()), key=bytes) == sorted(there)
    assert len(requests.parts) <= (len(there) // PART + 4 if ordered else 8)


def test_a_client_without_order_has_its_duplicates_dropped_among_many() -> None:
    source = random.Random(SEED)
    scene = Scene()
    scene.ready("0.3", b"W1")
    ids = [number.to_bytes(8, "big") for number in source.sample(range(1 << 62), 2 * PART)]
    requests = [client_request("0.3", ECHO, (b"x",), id=one) for one in ids]
    for at in range(0, len(requests), 100):
        scene.send(CLIENT, *requests[at : at + 100])
    scene.send(CLIENT, *requests[::100])
    assert scene.counters["dropped_duplicate"] == len(requests[::100])
    assert scene.counters["accepted"] == len(ids)
    assert len(scene.lose(CLIENT)) == 1  # CANCEL for the one at the worker
    assert scene.counters["client_gone"] == len(ids)


@pytest.mark.parametrize("runs", [[1] * 600, [600], [200, 1, 300, 99], [PIECE, PIECE, 88]])
@pytest.mark.parametrize("most", [1, 7, PIECE, 1000])
def test_a_queue_gives_what_it_was_given_in_order(runs: list[int], most: int) -> None:
    queue, numbers = RequestQueue(), iter(range(1 << 30))
    pushed = []
    for count in runs:
        run = [made(next(numbers)) for _ in range(count)]
        queue.push(CLIENT, run)
        pushed += run
    assert (queue.count, queue.size, queue.waiting(CLIENT)) == (600, 2400, 600)
    got: list[Request] = []
    while popped := queue.pop_many(0.0, most):
        assert len(popped) <= most
        got += popped
        assert (queue.count, queue.waiting(CLIENT)) == (600 - len(got), 600 - len(got))
    assert got == pushed
    assert (queue.size, queue.pop(), queue.pop_many(0.0, 5)) == (0, None, [])


def test_many_at_once_are_those_that_came_one_by_one_with_dropped_ones_between() -> None:
    one_by_one, at_once = RequestQueue(), RequestQueue()
    for queue in (one_by_one, at_once):
        runs = {client: [made(number) for number in range(40)] for client in (b"A", b"B")}
        for client, run in runs.items():
            for request in run:
                request.client = client
            queue.push(client, run)
            queue.drop(run[3])
            run[3].client = None
    alone = [one_by_one.pop() for _ in range(30)]
    assert [request and (request.client, request.key) for request in alone] == [
        (request.client, request.key) for request in at_once.pop_many(0.0, 30)
    ]


def test_a_piece_taken_from_a_queue_is_no_longer_its_own() -> None:
    queue = ClientQueue()
    run = [made(number) for number in range(5)]
    queue.push(run)
    run.clear()
    assert [request.key[-1] for request in queue.take(2)] == [0, 1]
    assert [request.key[-1] for request in queue.take(9)] == [2, 3, 4]
    assert not queue.pieces


@pytest.mark.parametrize("fewer", [[1, 1, 0], [0, 1, 1], [0, 0]])
def test_parts_are_larger_for_a_client_whose_ids_are_asked_for_half_as_often_as_they_come(fewer: list[int]) -> None:
    requests, keys, expected = OpenRequests(), 0, PART
    for less in [PART // 2, PART // 2, *fewer, 1]:
        part = requests.newest()
        for _ in range(PART // 2 - less):
            assert not requests.has(b"absent")
        while requests.newest() is part:
            keys += 1
            opened(requests, keys)
        assert len(part) == expected
        expected = PART if less else len(requests)


@pytest.mark.parametrize("stay", [PART // REST, PART // REST - 1])
def test_what_is_left_of_a_part_stays_there_or_moves_by_its_share(stay: int) -> None:
    requests = OpenRequests()
    for key in range(PART):
        opened(requests, key)
    (part,) = requests.parts
    for one in list(part)[stay:]:
        del part[one]
    while requests.newest() is part:
        opened(requests, PART + len(part))
    assert len(requests.parts) == 2  # it was full again
    for one in list(part)[stay:]:
        del part[one]
    newest = requests.newest()
    while requests.newest() is newest:
        opened(requests, 3 * PART + len(newest))
    assert (any(one is part for one in requests.parts), len(part)) == (stay == PART // REST, stay)


def test_pieces_of_a_queue_are_filled_before_the_next_and_are_never_empty() -> None:
    queue, numbers = ClientQueue(), iter(range(1 << 30))

    def push(count: int) -> list[int]:
        queue.push([made(next(numbers)) for _ in range(count)])
        return [len(piece) for piece in queue.pieces]

    assert [push(1), push(PIECE - 2), push(1), push(1)] == [[1], [PIECE - 1], [PIECE], [PIECE, 1]]
    assert push(PIECE - 1) == [PIECE, PIECE]
    assert len(queue.take(1)) == 1
    assert push(1) == [PIECE - 1, PIECE, 1]
    assert len(queue.take(PIECE - 1)) == PIECE - 1
    assert [len(piece) for piece in queue.pieces] == [PIECE, 1]


def test_what_is_kept_of_a_queue_is_in_order_and_in_pieces() -> None:
    queue = ClientQueue()
    run = [made(number) for number in range(3 * PIECE)]
    queue.push(run)
    live = run[1::3] + run[2::3]
    queue.keep(live)
    assert [*queue] == live
    assert [len(piece) for piece in queue.pieces] == [PIECE, PIECE]
    queue.keep(live[: PIECE + 1])
    assert [len(piece) for piece in queue.pieces] == [PIECE, 1]
    queue.keep([])
    assert not queue.pieces
