"""What happened in the broker, counted: nothing is dropped without a name here (BEY-16).

Pure. All are plain integers that only grow. The hot path adds to the first three once per batch, everything else goes through `count`.
"""

from __future__ import annotations

__all__ = ["Counters"]


class Counters:
    """Plain integers, one per kind of event, all starting at 0.

    Attributes:
        accepted: requests taken in; each is closed once, in one of the ways below.
        closed: requests that are done with.
        replies: FINALs and REPLYs forwarded to clients.
        partials: PARTIALs forwarded or kept.
        errors_forwarded: ERRORs of workers forwarded.
        mmi: requests answered by the broker itself.
        error_*: requests the broker ended with an ERROR of that code, whether it had accepted them or not.
        silent_*: the same for a client whose dialect has no way to say so: dropped; `silent_handler_error` an ERROR of a worker.
        dropped_duplicate: a request with the id of one that is still open; the first goes on.
        cancel_unknown: CANCEL for a request that is not open: the answer crossed it.
        client_gone: requests closed because their client went away.
        redelivered: requests taken from a lost worker and queued again.
        recalled: requests that were asked back from a worker that had more than it works on at once, for one that was free; `returned`:
            those of them that it had not begun, so that another got them.
        key_conflicts: requests refused because their key was used with another body (IDM-05).
        key_joined: requests that wait for the answer of another one with the same key.
        key_begun_again: executions queued again because the worker kept to the deadline of one of several requests with the key.
        key_replayed: requests answered with a kept reply.
        replies_kept: answers nobody waited for when they came, kept for whoever asks again with the key.
        replies_unwanted, partials_unwanted: answers nobody waits for any more.
        parts_dropped: requests closed because their PARTIALs outgrew what is kept for a client without PARTIAL.
        heartbeats_received, heartbeats_sent: of workers; `client_heartbeats` of clients, each answered.
        workers_registered: READYs taken.
        ready_refused: READYs answered with DISCONNECT: `mmi.*`, bad name, bad options, a limit.
        workers_left: by DISCONNECT; `workers_lost`: with their connection; `workers_expired`: by silence;
            `workers_stuck`: held a request for too long.
        cut_slow: peers cut because they do not read what they are sent.
        cut_unexpected: workers sent away for a valid command at the wrong time or for another's request.
        cut_invalid: workers deleted for an invalid message.
        forbidden_mmi: questions to MMI answered with 403, by the rules; `forbidden_serve`: READYs answered with DISCONNECT, by the rules.
        users_not_believed: requests whose client named a user it may not speak for: the name was dropped.
        told_disconnect: commands of unknown workers, answered with DISCONNECT.
        ignored_disconnect: DISCONNECTs of unknown workers.
        invalid_*: messages that are no command, by reason.
        services_refused: services not made because there are too many; `services_forgotten`: idle ones forgotten, or no longer asked for.
    """

    NAMES = (
        "accepted",
        "closed",
        "replies",
        "partials",
        "errors_forwarded",
        "mmi",
        "error_bad_request",
        "error_busy",
        "error_cancelled",
        "error_dead_letter",
        "error_deadline_exceeded",
        "error_forbidden",
        "error_no_service",
        "error_timeout",
        "error_too_large",
        "error_worker_lost",
        "silent_busy",
        "silent_dead_letter",
        "silent_forbidden",
        "silent_handler_error",
        "silent_no_service",
        "silent_timeout",
        "silent_too_large",
        "silent_worker_lost",
        "dropped_duplicate",
        "cancel_unknown",
        "client_gone",
        "redelivered",
        "recalled",
        "returned",
        "key_conflicts",
        "key_joined",
        "key_begun_again",
        "key_replayed",
        "replies_kept",
        "replies_unwanted",
        "partials_unwanted",
        "parts_dropped",
        "heartbeats_received",
        "heartbeats_sent",
        "client_heartbeats",
        "workers_registered",
        "ready_refused",
        "workers_left",
        "workers_lost",
        "workers_expired",
        "workers_stuck",
        "cut_slow",
        "cut_unexpected",
        "cut_invalid",
        "forbidden_mmi",
        "forbidden_serve",
        "users_not_believed",
        "told_disconnect",
        "ignored_disconnect",
        "invalid_frames",
        "invalid_header",
        "invalid_command",
        "invalid_service",
        "invalid_address",
        "invalid_id",
        "invalid_error",
        "invalid_dialect",
        "services_refused",
        "services_forgotten",
    )
    __slots__ = NAMES

    accepted: int
    closed: int
    replies: int
    heartbeats_sent: int
    services_forgotten: int

    def __init__(self) -> None:
        for name in self.NAMES:
            setattr(self, name, 0)

    def count(self, name: str) -> None:
        """Add one to a counter by name."""
        setattr(self, name, getattr(self, name) + 1)

    def as_dict(self) -> dict[str, int]:
        """Return all counters by name."""
        return {name: getattr(self, name) for name in self.NAMES}
