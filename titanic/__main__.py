"""`python -m titanic` is `titanic`."""

from __future__ import annotations

from titanic.cli import main

main()
