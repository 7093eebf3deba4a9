"""Handlers of requests for typed functions and for functions of tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mdp.typed.calls import typed_handler
from mdp.typed.descriptions import announced, description_of
from mdp.worker.handler import BATCH_METADATA, is_typed, name_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mdp.worker.handler import ServiceMark, WorkerSettings


def with_arguments(handler: Callable[..., Any], mark: ServiceMark, service: str, options: WorkerSettings) -> tuple[Callable[..., Any], Any]:
    """Return the handler of requests that calls a batch or typed function, and the metadata that describes it."""
    metadata = options.get("metadata")
    if mark.batch:
        from mdp.batch.handler import batch_handler  # late: it needs pyarrow

        return batch_handler(handler, name_of(handler)), {**(metadata or {}), BATCH_METADATA: mark.batch}
    if is_typed(handler):
        described = description_of(handler, service, str(options.get("version", "")))
        return typed_handler(handler, name_of(handler)), announced(described, metadata)
    return handler, metadata
