"""Counters of the broker: every drop is counted under a name (BEY-16).

Pure. All are integers that only grow. The hot path adds to the first three once per batch; everything else uses `count`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final


@dataclass(slots=True)
class Counters:
    """One integer per kind of event, starting at 0."""

    accepted: int = 0  # requests; each is closed once, in one of the ways below
    closed: int = 0  # requests that have ended
    replies: int = 0  # FINALs and REPLYs forwarded to clients
    partials: int = 0  # PARTIALs forwarded or kept
    errors_forwarded: int = 0  # ERRORs of workers forwarded
    mmi: int = 0  # requests answered by the broker itself
    # error_*: requests the broker ended with an ERROR of that code, whether it had accepted them or not
    error_bad_request: int = 0
    error_busy: int = 0
    error_cancelled: int = 0
    error_dead_letter: int = 0
    error_deadline_exceeded: int = 0
    error_forbidden: int = 0
    error_no_service: int = 0
    error_timeout: int = 0
    error_too_large: int = 0
    error_worker_lost: int = 0
    # silent_*: the same for clients whose dialect has no errors: dropped; `silent_handler_error` for an ERROR of a worker
    silent_busy: int = 0
    silent_dead_letter: int = 0
    silent_forbidden: int = 0
    silent_handler_error: int = 0
    silent_no_service: int = 0
    silent_timeout: int = 0
    silent_too_large: int = 0
    silent_worker_lost: int = 0
    dropped_duplicate: int = 0  # requests with the id of a request that is still open; the first one continues
    cancel_unknown: int = 0  # CANCELs for a request that is not open, as when its answer was already sent
    client_gone: int = 0  # requests closed because their client disconnected
    redelivered: int = 0  # requests taken from a lost worker and queued again
    retried: int = 0  # requests queued again because their handler failed and the service has a retry policy
    # requests recalled from a worker with more than it can work on at once, because another worker is free, or because their client left
    recalled: int = 0
    returned: int = 0  # recalled requests the worker had not begun, which another worker gets if a client waits for them
    key_conflicts: int = 0  # requests refused because their key was used with another body (IDM-05)
    key_joined: int = 0  # requests that wait for the answer to another request with the same key
    key_begun_again: int = 0  # executions queued again because the worker kept to the deadline of one of several requests with the key
    key_replayed: int = 0  # requests answered with a kept reply
    replies_kept: int = 0  # answers that no client waited for on arrival, kept for a later request with the same key
    replies_unwanted: int = 0  # answers that no client waits for any longer
    partials_unwanted: int = 0  # the same, of parts
    progress: int = 0  # PROGRESS forwarded to clients that asked for it
    told_rate: int = 0  # PROGRESS that told a client which rate its request waits for
    parts_dropped: int = 0  # requests closed because their PARTIALs, kept for a client without PARTIAL, exceeded the limit
    heartbeats_received: int = 0  # from workers
    heartbeats_sent: int = 0  # to workers
    client_heartbeats: int = 0  # from clients, each answered
    workers_registered: int = 0  # accepted READYs
    ready_refused: int = 0  # READYs answered with DISCONNECT: `mmi.*`, bad name, bad options, a limit
    ready_elsewhere: int = 0  # the same, for a service that belongs to another shard
    workers_left: int = 0  # workers removed by their DISCONNECT
    workers_lost: int = 0  # with their connection
    workers_expired: int = 0  # by silence
    workers_stuck: int = 0  # because they kept a request for too long
    cut_slow: int = 0  # peers disconnected because they do not read what they are sent
    cut_unexpected: int = 0  # workers sent DISCONNECT for a valid command in the wrong state or for another worker's request
    cut_invalid: int = 0  # workers deleted for an invalid message
    forbidden_mmi: int = 0  # MMI requests answered with 403, by the rules
    forbidden_serve: int = 0  # READYs answered with DISCONNECT, by the rules
    users_not_believed: int = 0  # requests whose client named a user without the right to: the name was dropped
    told_disconnect: int = 0  # commands of unknown workers answered with DISCONNECT
    ignored_disconnect: int = 0  # DISCONNECTs of unknown workers
    # invalid_*: invalid messages, by reason
    invalid_frames: int = 0
    invalid_header: int = 0
    invalid_command: int = 0
    invalid_service: int = 0
    invalid_address: int = 0
    invalid_id: int = 0
    invalid_error: int = 0
    invalid_dialect: int = 0
    unknown_dialect: int = 0  # peers that have sent a message without a header of MDP
    services_refused: int = 0  # services not created because of a limit
    services_forgotten: int = 0  # services removed because they were idle or not requested any longer

    def count(self, name: str) -> None:
        setattr(self, name, getattr(self, name) + 1)

    def as_dict(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in _NAMES}


_NAMES: Final = tuple(field.name for field in fields(Counters))
