"""Every broker of a test in order.

Each state of a request follows from the one before, and at its end what a broker has is what it counts.

Both are put in place once for the whole run, by `tests/conftest.py`.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Final

from mdp.broker.broker import Broker
from mdp.broker.requests.invariants import InvariantBroken, check_broker, check_clock
from mdp.broker.requests.records import Request
from mdp.broker.requests.request_states import AFTER, RequestState
from mdp.cluster.lending_broker import LendingBroker

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["watch_brokers", "watch_states"]

# Everything the loop calls, after each of which the clock of a broker is set for what is due then.
CALLED: Final[dict[type[Broker], tuple[str, ...]]] = {
    Broker: ("_on_batch", "_on_peer", "_on_time", "set_rules", "set_policies"),
    LendingBroker: ("_on_batch", "_on_peer", "_on_time", "on_offer", "on_peer_lost", "on_answers"),
}
WRONG_MAX: Final = 20  # a broker that is wrong once is so at each call


def watch_states() -> None:
    """Hold each store of a request's state against the table."""
    slot: Any = Request.__dict__["state"]
    read, write = slot.__get__, slot.__set__
    lawful = {(before, after) for before, afters in AFTER.items() for after in afters}
    first = {RequestState.ACCEPTED, *AFTER[RequestState.ACCEPTED]}

    def store(request: Request, state: RequestState) -> None:
        try:
            before = read(request)
        except AttributeError:
            before = None
        if state not in first if before is None else (before, state) not in lawful:
            raise InvariantBroken(f"a request goes from {before} to {state}")
        write(request, state)

    setattr(Request, "state", property(read, store))  # noqa: B010  # in place of the slot, for all records of the run


def watch_brokers() -> Callable[[], list[str]]:
    """Look at the clock of every broker after each call, and at all of it before it stops.

    Returns:
        What takes the list of what was wrong since it was last called.
    """
    wrong: list[str] = []
    stop = Broker.stop

    @wraps(stop)
    def checked_stop(broker: Broker) -> None:
        if broker._is_open:
            try:
                check_broker(broker)
            except InvariantBroken as error:
                wrong.append(str(error))  # to be raised when the test has ended, and not in the midst of closing
        stop(broker)

    def take() -> list[str]:
        taken = [*wrong]
        wrong.clear()
        return taken

    def watched(call: Callable[..., Any]) -> Callable[..., Any]:
        """Return what does the same, and looks at the clock when it is done, if the broker serves then."""

        @wraps(call)
        def checked(broker: Broker, *given: Any) -> Any:
            done = call(broker, *given)
            if broker._is_open:
                try:
                    check_clock(broker)
                except InvariantBroken as error:
                    if len(wrong) < WRONG_MAX:
                        wrong.append(f"after {call.__qualname__}: {error}")
            return done

        return checked

    setattr(Broker, "stop", checked_stop)  # noqa: B010
    for owner, names in CALLED.items():
        for name in names:
            setattr(owner, name, watched(getattr(owner, name)))
    return take
