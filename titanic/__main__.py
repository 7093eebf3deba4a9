"""`python -m titanic` is `titanic`."""

from __future__ import annotations

from titanic.commands.main import main

main()
