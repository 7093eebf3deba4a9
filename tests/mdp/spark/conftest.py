"""Root of the source tree, for Spark tests; their session and services are in `tests/conftest.py`."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[3]
