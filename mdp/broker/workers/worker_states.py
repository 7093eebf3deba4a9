"""State table of workers (MDP-26): the broker's action for each command in each state, refused ones too.

                    READY       REPLY / FINAL   PARTIAL     ERROR       RETURN      HEARTBEAT   DISCONNECT  invalid
    unknown         REGISTER    DISCONNECT      DISCONNECT  DISCONNECT  DISCONNECT  DISCONNECT  IGNORE      DROP
    idle            DISCONNECT  DISCONNECT      DISCONNECT  DISCONNECT  DISCONNECT  REFRESH     DELETE      DELETE
    busy            DISCONNECT  FORWARD         FORWARD     FORWARD     FORWARD     REFRESH     DELETE      DELETE

A worker is unknown until it is registered and again once it is deleted; busy while it has a request. FORWARD becomes DISCONNECT when the
answer is not for a request of this worker (MDP-30), or a RETURN was not requested by RECALL. Whenever a busy worker is deleted, its
requests are queued again.
A command of another dialect than the worker registered with is invalid. Pure.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from mdp.wire.events import Disconnect, Failure, Final, Heartbeat, Invalid, Partial, ProgressReport, Ready, Return

if TYPE_CHECKING:
    from mdp.wire.events import BrokerEvent


class State(Enum):
    """State of a worker in the broker."""

    UNKNOWN = auto()
    IDLE = auto()
    BUSY = auto()


class Action(Enum):
    """Action of the broker."""

    REGISTER = auto()  # as idle
    FORWARD = auto()  # to the client, a RETURN to another worker; a FINAL, ERROR or RETURN gives the credit back
    REFRESH = auto()  # note that it lives
    DISCONNECT = auto()  # send DISCONNECT as the last message, and delete it if registered (MDP-28)
    DELETE = auto()  # without a message to it
    DROP = auto()  # drop the message
    IGNORE = auto()  # not an error


_UNKNOWN: dict[type[BrokerEvent], Action] = {
    Ready: Action.REGISTER,
    Final: Action.DISCONNECT,
    Partial: Action.DISCONNECT,
    ProgressReport: Action.DISCONNECT,
    Failure: Action.DISCONNECT,
    Return: Action.DISCONNECT,
    Heartbeat: Action.DISCONNECT,  # MDP-27: it learns that it must register again
    Disconnect: Action.IGNORE,
    Invalid: Action.DROP,  # MDP-29: no record is made
}
_IDLE: dict[type[BrokerEvent], Action] = {
    Ready: Action.DISCONNECT,
    Final: Action.DISCONNECT,
    Partial: Action.DISCONNECT,
    ProgressReport: Action.DISCONNECT,
    Failure: Action.DISCONNECT,
    Return: Action.DISCONNECT,
    Heartbeat: Action.REFRESH,
    Disconnect: Action.DELETE,
    Invalid: Action.DELETE,
}
_BUSY: dict[type[BrokerEvent], Action] = {
    Ready: Action.DISCONNECT,
    Final: Action.FORWARD,
    Partial: Action.FORWARD,
    ProgressReport: Action.FORWARD,
    Failure: Action.FORWARD,
    Return: Action.FORWARD,
    Heartbeat: Action.REFRESH,
    Disconnect: Action.DELETE,
    Invalid: Action.DELETE,
}

TABLE: dict[State, dict[type[BrokerEvent], Action]] = {State.UNKNOWN: _UNKNOWN, State.IDLE: _IDLE, State.BUSY: _BUSY}
