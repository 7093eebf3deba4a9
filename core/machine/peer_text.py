"""Reads decimal numbers and JSON that peers write. Pure: whatever they wrote, no error but `BadJson` is raised."""

from __future__ import annotations

import json
from typing import Any, Final

DIGITS_MAX: Final = 18  # fits 64 bits; Python itself refuses to convert some thousands


class BadJson(ValueError):
    """The peer's bytes are not JSON."""


def decimal(octets: bytes, digits_max: int = DIGITS_MAX) -> int | None:
    """Return the number that these digits write; None if they are none, or more than allowed."""
    # Length first: `int` of a very long text raises an error of its own.
    return int(octets) if len(octets) <= digits_max and octets.isdigit() else None


def json_or_none(octets: bytes) -> Any:
    """Return the value that this JSON writes, None if it is not JSON."""
    try:
        return read_json(octets)
    except BadJson:
        return None


def read_json(octets: bytes) -> Any:
    try:
        return json.loads(octets)
    except (ValueError, RecursionError) as error:  # also what is not UTF-8, or nested too deeply
        raise BadJson(str(error)) from None
