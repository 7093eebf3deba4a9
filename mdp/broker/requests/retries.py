"""Requests that are executed again after their handler failed, when the service has a retry policy. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from mdp.broker.requests.policy_queue import PolicyQueue
from mdp.broker.requests.records import RequestExtras
from mdp.broker.requests.request_states import RequestState

if TYPE_CHECKING:
    from mdp.broker.requests.records import Request
    from mdp.broker.requests.request_table import RequestTable

_FAILED: Final = "HANDLER_ERROR"
# Fibonacci hashing: the numbers of requests begin at random in each broker, and consecutive ones are spread evenly by it.
_SPREAD: Final = 0x9E3779B97F4A7C15
_MASK: Final = 2**64 - 1


def retried(table: RequestTable, request: Request, code: str, now: float) -> bool:
    """Queue a request again whose handler has failed, after a delay; return False if it must not run again."""
    policies = request.service.policies
    retry = None if policies is None else policies.retry
    if retry is None or code != _FAILED or request.client is None:
        return False
    extras = request.extras
    if extras is None:
        extras = request.extras = RequestExtras()
    chance = ((request.number * _SPREAD) & _MASK) / _MASK
    at = now + retry.delay_s(extras.failures + 1, chance)
    sharers = [one.extras for one in table.sharers(request) if one.extras is not None]
    if extras.failures + 1 >= retry.attempts or extras.streamed or any(one.once or one.deadline <= at for one in sharers):
        return False
    extras.failures += 1
    table.counters.count("retried")
    queue = request.service.queue = PolicyQueue.of(request.service.queue)
    request.state = RequestState.QUEUED
    request.worker = None
    request.expires = table.queue_until(request, at)
    queue.push_delayed(request, at)
    table.check_at(request.service, at)
    return True
