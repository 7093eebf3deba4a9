"""Version of the distribution, and a check that the package `core` is ours; all our packages import this first.

`core` is a common name: another file or folder of that name earlier in the path would fail later, at an unrelated place. Nothing else is
imported, so a program pays only for the packages it uses.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from os.path import basename, dirname, normcase, normpath, splitext  # pathlib would be 0.7 MiB of a broker
from typing import Final, NoReturn

from majordomo_toolkit import source_only, starting  # noqa: F401 - before other imports, which take longer
from majordomo_toolkit.version import __version__

__all__ = ["COMMANDS", "__version__", "zmtp"]

COMMANDS: Final = ("bstar", "freelance", "mdp", "peering", "pirate", "titanic", "zmtp")
_BAD_CONFIG: Final = 78  # as `core.daemon.exit_codes.BadConfig`, which cannot be imported here


def _refuse(place: str) -> NoReturn:
    """End one of our commands with a line on stderr; raise ImportError in other programs."""
    text = (
        f"another package named core is in the way of majordomo-toolkit's: {place}; "
        "fix: start from another directory, take it out of PYTHONPATH, rename it, "
        "or install majordomo-toolkit into a virtual environment of its own"
    )
    command = splitext(basename(sys.argv[0]))[0] if sys.argv else ""
    if command in COMMANDS:
        print(f"{command}: {text}", file=sys.stderr)  # noqa: T201 - click and logging are not imported yet
        raise SystemExit(_BAD_CONFIG)
    raise ImportError(text, name="core", path=place)


def _root_of(file: str) -> str:
    return normcase(dirname(dirname(normpath(file))))


_found = find_spec("core")
if _found is None or _found.origin is None or _root_of(_found.origin) != _root_of(__file__):
    _refuse("none is installed" if _found is None else str(_found.origin or _found.name))


def zmtp() -> None:
    """Run the `zmtp` command, which is in `core`, after the check."""
    from core.cli import main

    main()
