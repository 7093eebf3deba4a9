"""What the Spark tests share; their session and their services are in `tests/conftest.py`, because other folders use them too."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[3]
