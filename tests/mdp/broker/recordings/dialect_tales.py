"""Recorded scenes in all dialects: lives, several at once, parts, queues, silence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mdp.wire.commands import (
    worker_disconnect,
    worker_error,
    worker_final,
    worker_heartbeat,
    worker_partial,
    worker_return,
)
from tests.mdp.broker.recordings.recorded_scene import Tale
from tests.scenes.mdp_dispatcher import DIALECTS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mdp.wire.commands import Dialect

__all__ = ["dialect_tales"]


def only(when: bool, options: dict[str, Any]) -> dict[str, Any]:
    return options if when else {}


def life(client: Dialect, worker: Dialect, guarded: bool = False) -> Tale:
    """Everything that a client and a worker of two dialects may do in turn."""
    it = Tale(guarded=guarded)
    it.comes(worker, b"W1", **only(worker == "0.3", {"credit": 2}))
    it.asks(client, b"C1")
    it.asks(client, b"C2", b"two", b"", b"frames")
    it.asks(client, b"C3", b"z" * 300)
    it.later(0.5)
    it.ends(worker)
    if worker != "0.1":
        it.says(b"W1", worker_partial(worker, it.tokens[b"W1"][0], [b"part", b"of it"]))
    it.ends(worker, b"W1", b"long" * 100, b"", b"end")
    it.ends(worker)
    it.asks(client, b"C1", b"later")
    it.says(b"W1", worker_heartbeat(worker))
    it.goes(b"C1")
    it.ends(worker)
    if worker == "0.3":
        it.asks(client, b"C1", b"fails")
        it.says(b"W1", worker_error(it.token(), "HANDLER_ERROR", "no"))
    it.asks(client, b"C1", b"lost")
    it.asks(client, b"C1", b"waits")
    it.asks(client, b"C1", b"waits too")
    it.goes(b"W1")
    it.comes(worker, b"W2")
    it.asks(client, b"C2", b"last")
    it.later(0.3)
    it.goes(b"W2")
    it.comes(worker, b"W3")
    it.ends(worker, b"W3")
    it.says(b"W3", worker_heartbeat(worker))
    it.later(0.1)
    it.says(b"W3", worker_disconnect(worker))
    it.later(6.0)
    it.later(6.0)
    return it


def several(client: Dialect, worker: Dialect) -> Tale:
    """Messages that arrive in one read."""
    it = Tale()
    for peer in (b"W1", b"W2"):
        it.comes(worker, peer, **only(worker == "0.3", {"credit": 4, "concurrency": 2}))
    it.says(b"C1", *(it.request(client, b"%d" % count) for count in range(11)))
    it.says(b"C2", *(it.request(client, b"%d" % count) for count in range(3)))
    for peer in (b"W1", b"W2", b"W2"):
        it.later(0.01)
        it.says(peer, *(worker_final(worker, it.token(peer), [b"y"]) for _ in range(len(it.tokens[peer]))))
    it.later(0.1)
    it.calls("stop")
    return it


def parts(client: Dialect, worker: Dialect, narrow: Sequence[bytes]) -> Tale:
    """Parts of answers, for peers that take all of it and for others."""
    it = Tale(narrow=narrow, parts_max_bytes=60_000)
    it.comes(worker)
    for body in ((b"a",), (b"b" * 10_000,), (b"c" * 40_000,), (b"d",) * 70):
        it.asks(client, b"C1")
        if it.tokens[b"W1"]:
            token = it.tokens[b"W1"][0]
            it.says(b"W1", worker_partial(worker, token, body))
            it.says(b"W1", worker_partial(worker, token, body))
            it.says(b"W1", worker_final(worker, it.token(), body))
        it.asks(client, b"C1", *body)
        while it.tokens[b"W1"]:
            it.ends(worker)
    it.asks(client, b"C1")
    token = it.tokens[b"W1"][0]
    it.says(b"W1", worker_partial(worker, token, [b"one"]))
    it.goes(b"W1")
    it.comes(worker, b"W2")
    it.later(1.5)
    return it


def sign(worker: Dialect, what: str) -> Tale:
    """A sign of life, and silence after it."""
    it = Tale(busy_ms=4000)
    it.comes(worker, **only(worker == "0.3", {"credit": 3, "concurrency": 1}))
    for _ in range(3):
        it.asks("0.3", b"C1", wait=True)
    it.later(1.6)
    if what == "part":
        it.says(b"W1", worker_partial(worker, it.tokens[b"W1"][0], [b"p"]))
    elif what == "final":
        it.ends(worker)
    elif what == "error":
        it.says(b"W1", worker_error(it.token(), "HANDLER_ERROR", "no"))
    elif what == "heartbeat":
        it.says(b"W1", worker_heartbeat(worker))
    elif what == "stuck":
        it.says(b"W1", worker_heartbeat(worker, stuck=True))
        it.asks("0.3", b"C2", b"echo", service=b"mmi.workers")
    elif what == "return":
        it.comes("0.3", b"W2", concurrency=1, credit=2)
        it.later(0.1)
        it.says(b"W1", worker_return(it.tokens[b"W1"][2]))
        it.ends(worker, b"W2")
    it.later(3.0)
    it.later(6.0)
    return it


def waiting(client: Dialect, **options: Any) -> Tale:
    """Waiting requests: their limits, their time, and their end."""
    it = Tale(**options)
    wish = only(client == "0.3", {"wait": True})
    for count in range(3):
        it.asks(client, b"C1", b"%d" % count, **wish)
    it.asks(client, b"C2", b"long" * 10, **wish)
    it.asks(client, b"C2", service=b"other", **wish)
    it.asks(client, b"C2", service=b"third", **wish)
    it.later(2.5)
    it.asks(client, b"C3", **wish)
    it.goes(b"C2")
    it.later(2.5)
    it.comes("0.3", b"W1")
    it.later(0.5)
    it.says(b"W1", worker_disconnect("0.3"))
    it.later(11.0)
    return it


def dialect_tales() -> dict[str, Callable[[], Tale]]:
    """Return the tales by name, in their order."""
    tales: dict[str, Callable[[], Tale]] = {}
    for client in DIALECTS:
        for worker in DIALECTS:
            tales[f"a life: client {client}, worker {worker}"] = lambda client=client, worker=worker: life(client, worker)  # type: ignore[misc]
            tales[f"several at once: client {client}, worker {worker}"] = lambda client=client, worker=worker: several(client, worker)  # type: ignore[misc]
            if worker == "0.1" or (client, worker) == ("0.2", "0.3"):
                continue  # nothing in it is another way than elsewhere
            for narrow in ((), (b"C1",), (b"W1",)):
                name = f"parts: client {client}, worker {worker}, narrow {b' '.join(narrow).decode() or 'nobody'}"
                tales[name] = lambda client=client, worker=worker, narrow=narrow: parts(client, worker, narrow)  # type: ignore[misc]
        tales[f"a life with rules: client {client}"] = lambda client=client: life(client, "0.3", guarded=True)  # type: ignore[misc]
        for name, limits in {
            "time": {},
            "places": {"queue_max": 3},
            "octets": {"queue_max_bytes": 30},
            "turns": {"client_queue_max": 2},
            "names": {"absent_max": 2},
            "memory": {"memory_max_bytes": 2100},
        }.items():
            tales[f"waiting: client {client}, {name}"] = lambda client=client, limits=limits: waiting(client, **limits)  # type: ignore[misc]
    for worker in DIALECTS:
        for what in ("nothing", "part", "final", "error", "heartbeat", "stuck", "return"):
            if worker == "0.3" or (what not in {"error", "stuck", "return"} and (worker, what) != ("0.1", "part")):
                tales[f"silence after {what}: worker {worker}"] = lambda worker=worker, what=what: sign(worker, what)  # type: ignore[misc]
    return tales
