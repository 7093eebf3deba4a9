"""BEY-04 where a broker ends the connection because of one request.

That is sent as often as it has attempts, the others are answered.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest

import core
import mdp
from core.machine.requests import SETTLED
from mdp.client.calls import Call, PendingRequest
from mdp.client.resending import PROOF_S, SINGLES, Resending
from mdp.wire.commands import CLIENT_FINAL_03, CLIENT_HEARTBEAT_03, CLIENT_REQUEST_03, HEAD_BYTES, MDPC01
from tests.scenes.mdp_scripted_broker import PROBE

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType
    from typing import Self

POISON = b"poison"


class Picky:
    """A broker that disconnects a peer that sends poison, and echoes everything else.

    Args:
        slow: bodies that are answered only when the poison is gone for good, as by a worker that takes its time.
    """

    def __init__(self, slow: Iterable[bytes] = ()) -> None:
        self.runs: Counter[bytes] = Counter()
        self.held: dict[bytes, list[bytes]] = {}
        self._slow = set(slow)
        self._context = core.Context()
        self._socket = self._context.socket(core.ROUTER, linger=0)

    async def __aenter__(self) -> Self:
        self._socket.bind("tcp://127.0.0.1:*")
        self._socket.set_receiver(self._take)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._context.aclose(0)

    @property
    def endpoint(self) -> str:
        return self._socket.last_endpoint

    def release(self) -> None:
        """Answer what was held."""
        self._slow.clear()
        for message in self.held.values():
            self._socket.send_multipart(message)

    def _take(self, batch: list[list[bytes]]) -> None:
        for peer, *frames in batch:
            if frames == PROBE:
                self._socket.send_multipart([peer, *PROBE[:3], b"200"])
            elif frames == [CLIENT_HEARTBEAT_03]:
                self._socket.send_multipart([peer, CLIENT_HEARTBEAT_03])
            elif frames[0][:HEAD_BYTES] == CLIENT_REQUEST_03 or frames[1] == MDPC01:
                body = frames[-1]
                self.runs[body] += 1
                if body == POISON:
                    self._socket.cut(peer)
                    return
                head = [CLIENT_FINAL_03 + frames[0][HEAD_BYTES:]] if frames[0] else frames[:3]
                self.held[body] = [peer, *head, body]
                if body not in self._slow:
                    self._socket.send_multipart(self.held[body])


@pytest.mark.parametrize("attempts", [1, 2, 3, 5])
async def test_the_poison_is_sent_once_per_attempt_and_the_others_are_answered(attempts: int) -> None:
    bodies = [b"a", b"b", b"c"]
    async with Picky(bodies) as broker, mdp.Client(broker.endpoint, attempts=attempts, timeout=100) as client:
        before = client.request("any", bodies[0])
        poison = client.request("any", POISON)
        behind = [client.request("any", body) for body in bodies[1:]]
        with pytest.raises(mdp.Timeout, match="ended the connection each time") as caught:
            await poison
        most = max(2, attempts)  # one lost connection is survived by all
        assert (caught.value.attempts, broker.runs[POISON]) == (most, most)
        broker.release()
        assert await asyncio.gather(before, *behind) == [[body] for body in bodies]
        assert all(broker.runs[body] <= most + 1 for body in bodies)
        assert client.counters.repeated >= sum(broker.runs.values()) - 4  # each is counted, one that the broker did not read too


async def test_two_poisons_are_found_one_after_the_other() -> None:
    bodies = [b"%d" % n for n in range(40)]
    async with Picky(bodies) as broker, mdp.Client(broker.endpoint, timeout=100) as client:
        asked = [client.request("any", POISON if n in (3, 30) else body) for n, body in enumerate(bodies)]
        for n in (3, 30):
            with pytest.raises(mdp.Timeout):
                await asked[n]
        assert broker.runs[POISON] <= 7  # the second may have been one of a group, and then alone
        broker.release()
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert [answer for n, answer in enumerate(answers) if n not in (3, 30)] == [[b"%d" % n] for n in range(40) if n not in (3, 30)]


async def test_a_request_asked_meanwhile_is_sent_when_the_others_are() -> None:
    async with Picky() as broker, mdp.Client(broker.endpoint, timeout=100, attempts=2) as client:
        poison = [client.request("any", POISON) for _ in range(3)]
        for one in poison:
            with pytest.raises(mdp.Timeout):
                await one
            assert await client.request("any", b"later") == [b"later"]
        assert broker.runs[POISON] <= 6


async def test_in_older_dialects_too() -> None:
    async with Picky() as broker, mdp.Client(broker.endpoint, timeout=100, dialect="0.1") as client:
        asked = [client.request("any", body) for body in (b"a", POISON, b"b")]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        assert answers[::2] == [[b"a"], [b"b"]]
        assert isinstance(answers[1], mdp.Timeout)
        assert broker.runs[POISON] == 3


def test_groups_grow_after_so_many_single_ones() -> None:
    resending = Resending[PendingRequest]()
    allowed = [resending.allowed]
    for _ in range(SINGLES + 20):
        resending.clear_group()
        allowed.append(resending.allowed)
    assert allowed == [1] * SINGLES + [2**size for size in range(1, 17)] + [2**16] * 5
    resending.reset()
    resending.clear_group()
    assert resending.allowed == 1


def test_a_group_is_cleared_by_an_answer_or_by_time_and_suspected_before_others() -> None:
    resending = Resending[PendingRequest]()
    call = Call("echo", timeout_s=1.0, attempts=1)
    first, second, third, other = (PendingRequest(call, [b"x"]) for _ in range(4))
    resending.sent(first)
    assert (resending.allowed, resending.undecided, resending.answered) == (0, [], False)
    resending.wait(5.0)
    resending.wait(6.0)
    assert resending.due == 5.0 + PROOF_S
    first.stage = SETTLED
    assert resending.answered
    resending.clear_group()
    assert (resending.due, resending.answered) == (float("inf"), False)
    resending.sent(second)
    resending.sent(third)
    assert resending.undecided == [second, third]
    assert resending.split([other, first, third, second]) == ([third, second, other], [first])
