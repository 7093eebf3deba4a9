"""Mistakes that tests once did not see.

`make test` looks whether they are still seen, each by the tests that are named.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["KNOWN", "Known"]


class Known(NamedTuple):
    """A mistake written down.

    What stands in a file in the place of `old`, which tests are for it, and whether it has to live.
    """

    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    lives: bool = False


KEYS = ("tests/spec/test_mdp_broker_keys_time.py",)
RUNNERS = ("tests/mdp/worker/test_runners.py::test_a_deadline",)
KNOWN: tuple[Known, ...] = (
    # A deadline that passed while the request waited for a runner: dropped, and nobody is answered.
    Known(
        "mdp/worker/runners.py",
        """                    if request.cancelled or (request.expires_at is not None and self._expire(request)):
                        continue
                    request._task = task""",
        """                    if request.cancelled or request.expires_at is not None:
                        continue
                    request._task = task""",
        RUNNERS,
    ),
    # The same deadline never looked at.
    Known(
        "mdp/worker/runners.py",
        """                    if request.cancelled or (request.expires_at is not None and self._expire(request)):
                        continue
                    request._task = task""",
        """                    if request.cancelled:
                        continue
                    request._task = task""",
        RUNNERS,
    ),
    # Refused, and its sender not told.
    Known(
        "mdp/worker/runners.py",
        """        request._owner.refuse(request, "DEADLINE_EXCEEDED", "waited too long for a handler")\n""",
        """        pass\n""",
        RUNNERS,
    ),
    # A runner that is listed once more for each request it was called with at once.
    Known(
        "mdp/worker/runners.py",
        "            self._idle_runners.pop()\n",
        "            pass\n",
        ("tests/mdp/worker/test_runners.py::test_a_runner_waits_once",),
    ),
    # A take-over that loses its deadline.
    Known("mdp/broker/requests/idempotency.py", "            self.end_at(record, extras.deadline)\n", "            pass\n", KEYS),
    # A take-over that forgets which workers were lost with the request.
    Known(
        "mdp/broker/requests/idempotency.py",
        "        extras.lost, extras.lost_at = old.lost, old.lost_at\n",
        "        pass\n",
        KEYS,
    ),
    # A malformed message taken for a sign of life.
    Known(
        "mdp/worker/session.py",
        """        if new:
            liveness.heard_at = now
            self.search.failures = 0
            self.counters.received += len(new)""",
        """        liveness.heard_at = now
        self.search.failures = 0
        self.counters.received += len(new)""",
        ("tests/mdp/worker/test_session.py",),
    ),
    # An XSUB that sends nothing upstream.
    Known(
        "core/pattern/pubsub.py",
        "            distribute([pipe for pipe in self.pipes if self.available(pipe)], frames, self.counters)\n        elif parsed[0]:",
        "            pass\n        elif parsed[0]:",
        ("tests/spec/test_pubsub.py::test_psb_08",),
    ),
    # Memory shown as more than there is.
    Known(
        "mdp/broker/dispatcher.py",
        '"memory_bytes": self.options.memory_max_bytes - self.request_table.memory_left_bytes',
        '"memory_bytes": self.options.memory_max_bytes + self.request_table.memory_left_bytes',
        ("tests/mdp/broker/test_dispatcher.py::test_gauges",),
    ),
    # Changes nothing: the runner that reports it as seen would report everything as seen.
    Known(
        "mdp/broker/dispatcher.py",
        "self.options.memory_max_bytes - self.request_table.memory_left_bytes",
        "-self.request_table.memory_left_bytes + self.options.memory_max_bytes",
        ("tests/mdp/broker/test_dispatcher.py::test_gauges",),
        lives=True,
    ),
)
