"""Messages that a worker sends only to brokers that have shown that they understand them."""

from __future__ import annotations

import pytest

from mdp.wire.commands import V03, WORKER_HEARTBEAT_03, WORKER_PING_03, WORKER_RECALL_03, worker_heartbeat
from tests.scenes.mdp_messages import read
from tests.scenes.mdp_worker_sessions import sent, serving, token

STUCK = [WORKER_HEARTBEAT_03, b"\x81\xa5stuck\xc3"]


@pytest.mark.parametrize("word", [[WORKER_PING_03], [WORKER_RECALL_03 + token(99)]])
def test_a_worker_says_that_it_is_stuck_only_to_a_broker_that_has_shown_that_it_understands(word: list[bytes]) -> None:
    """Older brokers take a heartbeat with options for an invalid message, and remove its worker."""
    machine = serving(heartbeat_s=1.0, concurrency=4)
    machine.stuck = True
    machine.receive(read([worker_heartbeat(V03)]), 0.5)
    machine.tick(1.0)
    assert sent(machine, 1.0) == [[WORKER_HEARTBEAT_03]]
    machine.receive(read([word]), 1.5)
    machine.tick(2.6)
    assert sent(machine, 2.6)[-1] == STUCK
    machine.stuck = False
    machine.tick(2.7)
    assert sent(machine, 2.7) == [[WORKER_HEARTBEAT_03]]
    machine.stuck = True
    machine.lost(3.0)
    machine.search.take_actions()
    machine.tick(machine.deadline())
    machine.joined(10.0)
    sent(machine, 10.0)
    machine.tick(11.0)
    assert sent(machine, 11.0) == [[WORKER_HEARTBEAT_03]], "the next broker is another one"
