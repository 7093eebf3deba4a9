"""Times and counts that a program gives are checked where they are given, by name."""

from __future__ import annotations

from decimal import Decimal
from math import inf, nan
from typing import TYPE_CHECKING, Any

import pytest

import bstar
import core
import freelance
import mdp
import pirate
import titanic
from mdp.client.calls import CallDefaults
from peering.task_router import RouterLimits

if TYPE_CHECKING:
    from collections.abc import Callable

AT = "tcp://127.0.0.1:1"


async def converse(conversation: pirate.Conversation, body: list[bytes]) -> None:
    """Answer nothing."""


MAKERS: dict[str, tuple[Callable[..., Any], str, str]] = {  # and the names of its times, and of its counts
    "mdp request": (lambda **given: CallDefaults(**{"timeout": 1.0, "attempts": 3, **given}).call("s"), "timeout deadline", "attempts"),
    "mdp.Worker": (
        lambda **given: mdp.Worker(AT, "s", handler=print, **given),
        "heartbeat_ms reconnect_ms drain_s cancel_s blocked_s stuck_s results_ms",
        "liveness concurrency connections credit parts_max_bytes",
    ),
    "mdp.Broker": (lambda **given: mdp.Broker(**given), "heartbeat_ms results_ms hold_replies_ms start_hold_ms", "liveness"),
    "freelance.Client": (lambda **given: freelance.Client([AT], **given), "timeout try_timeout hedge", "outstanding_max"),
    "freelance.Server": (lambda **given: freelance.Server(AT, print, **given), "", "running_max"),
    "pirate.Client": (lambda **given: pirate.Client(AT, **given), "timeout", "attempts"),
    "pirate.Worker": (lambda **given: pirate.Worker(AT, print, **given), "heartbeat_ms reconnect_ms reconnect_max_ms jitter", "liveness"),
    "pirate.Queue": (lambda **given: pirate.Queue(AT, AT, **given), "heartbeat_ms ttl", "liveness waiting_max"),
    "pirate.AsyncServer": (lambda **given: pirate.AsyncServer(AT, converse, **given), "ttl", "running_max clients_max"),
    "bstar.Client": (lambda **given: bstar.Client(AT, AT, **given), "timeout settle patience", "window waiting_max"),
    "bstar.Pair": (
        lambda **given: bstar.Pair(bstar.PRIMARY, local=AT, remote=AT, **given),
        "heartbeat_ms",
        "held_max running_max",
    ),
    "bstar.Witness": (lambda **given: bstar.Witness(AT, **given), "heartbeat_ms", ""),
    "peering limits": (lambda **given: RouterLimits(**given), "heartbeat_ms state_ms ttl_ms", "liveness lent_max"),
    "titanic.Limits": (
        lambda **given: titanic.Limits(**given),
        "key_age_ms retain_ms",
        "requests_max bytes_max service_requests_max user_share",
    ),
    "titanic.DispatchOptions": (
        lambda **given: titanic.DispatchOptions(**given),
        "retry_s retry_max_s probe_s probe_max_s",
        "window probes_max",
    ),
    "titanic.ServiceOptions": (lambda **given: titanic.ServiceOptions(**given), "timeout_s permission_ms", "concurrency connections"),
}
NO_TIMES: dict[str, Any] = {"nan": nan, "-inf": -inf, "-1": -1, "Decimal": Decimal("0.5"), "text": "1", "huge": 10**400, "1e308": 1e308}
NO_COUNTS: dict[str, Any] = {**NO_TIMES, "inf": inf, "0": 0, "1.5": 1.5}
CASES = [
    (maker, name, wrong)
    for maker, (_, times, counts) in MAKERS.items()
    for names, values in ((times, NO_TIMES), (counts, NO_COUNTS))
    for name in names.split()
    for wrong in values
]


@pytest.mark.parametrize(("maker", "name", "wrong"), CASES, ids=lambda value: str(value).replace(" ", "-"))
async def test_a_number_that_means_nothing_is_refused_by_name(maker: str, name: str, wrong: str) -> None:
    if core.compiled and maker == "mdp request":  # its options are compiled fields: the interpreter converts them, or refuses them itself
        name_or_type = f"{name}|object expected"
        if (name, wrong) == ("timeout", "Decimal"):
            assert CallDefaults(timeout=NO_COUNTS[wrong], attempts=3).timeout == 0.5
            return
    else:
        name_or_type = name
    with pytest.raises((ValueError, TypeError), match=name_or_type):
        MAKERS[maker][0](**{name: NO_COUNTS[wrong]})


@pytest.mark.parametrize("wrong", [nan, -1.0, Decimal(1)])
async def test_a_time_of_one_request_that_means_nothing_is_refused_and_the_next_request_is_taken(wrong: Any) -> None:
    async with core.Context() as context, bstar.Client(AT, AT, context=context) as client:
        with pytest.raises((ValueError, TypeError), match="patience"):
            client.request(b"x", patience=wrong)
        asked = client.request(b"x", patience=0.01)
        with pytest.raises(bstar.NoServer):
            await asked


async def test_no_number_of_milliseconds_is_no_time_to_poll() -> None:
    async with core.Context() as context:
        socket = context.socket(core.PULL)
        with pytest.raises(ValueError, match="nan"):
            await socket.poll(nan)


def test_a_time_without_end_is_taken_where_it_means_no_limit() -> None:
    mdp.Worker(AT, "s", handler=print, drain_s=inf, stuck_s=inf)
    assert CallDefaults(timeout=inf, attempts=3).call("s").timeout_s == inf
