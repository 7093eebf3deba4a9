"""The worker: its machine, its connection, and the tasks that run its handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from majordomo_toolkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from mdp.worker.worker import Worker, WorkerOptions

__all__ = ["Worker", "WorkerOptions"]

if not TYPE_CHECKING:  # a type checker would take any name for one of ours
    __getattr__ = lazy_names(__name__, {"mdp.worker.worker": __all__})
