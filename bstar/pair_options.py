"""Options `--bstar…` of daemons that can run as half of a pair, and exit codes of pair errors."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from bstar.errors import Misconfigured, PairFault, StoreDamaged, StoreLocked
from bstar.machine.fsm import State
from bstar.machine.member_values import HEARTBEAT_MS_MAX, HEARTBEAT_MS_MIN
from core.daemon.command import BIND, CONNECT
from core.daemon.exit_codes import BadConfig, DiskFailed, RequestFailed, exits, file_problem
from core.daemon.option_fields import options
from core.security.key_files import KeyFileError, read_secret_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bstar.pair import Pair

HEARTBEAT: Final = click.IntRange(HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX)

KEY_HELP: Final = "File with the pair's key, the same on both servers and the witness; zmtp keygen makes one."

pair_options = options(
    click.option("--bstar", type=click.Choice(["primary", "backup"]), help="Run as one of a Binary Star pair; see docs/bstar.md."),
    click.option("--bstar-local", type=BIND, help="Endpoint to publish the state on."),
    click.option("--bstar-remote", type=CONNECT, help="Endpoint on which the other server publishes its state."),
    click.option("--bstar-witness", type=CONNECT, help="Endpoint of the witness; without one the pair is fenced."),
    click.option(
        "--bstar-heartbeat-ms", type=HEARTBEAT, default=1000, help="The same on both servers and the witness; fail-over takes two."
    ),
    click.option("--bstar-store", metavar="FILE", help="Ballot file, kept over restarts; one for each server."),
    click.option("--bstar-pair-key-file", type=click.Path(dir_okay=False), help=KEY_HELP),
    click.option("--bstar-control", type=BIND, help="Endpoint for bstar status and switchover; for operators only."),
    click.option("--bstar-lone-backup", is_flag=True, help="A backup that never heard its primary may serve."),
)


def key_from(path: str | None) -> bytes | None:
    """Return the pair key in a file, None without one; raises BadConfig if it is malformed or readable by others."""
    try:
        return None if path is None else read_secret_key(path)
    except KeyFileError as error:
        raise BadConfig(str(error)) from None


def pair_of(values: dict[str, Any]) -> Callable[..., Pair] | None:
    """Remove the options of the pair from `values` and return a function that creates the pair, None to run alone."""
    role = values.pop("bstar")
    mine = {name: values.pop(name) for name in [*values] if name.startswith("bstar_")}
    context = click.get_current_context()
    if role is None:
        given = [name for name in mine if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT]
        if given:
            raise click.UsageError(f"which of the two is this? --{given[0].replace('_', '-')} needs --bstar primary or backup")
        return None
    for name in ("bstar_local", "bstar_remote"):
        if mine[name] is None:
            raise click.UsageError(f"one of a pair needs --{name.replace('_', '-')}")
    mine["bstar_pair_key"] = key_from(mine.pop("bstar_pair_key_file"))
    from bstar.pair import Pair  # not loaded by a daemon that runs alone

    return partial(Pair, State[role.upper()], **{name.removeprefix("bstar_"): value for name, value in mine.items()})


@contextmanager
def pair_errors() -> Iterator[None]:
    """Turn errors of a pair into exit codes, with one line that says what to do."""
    try:
        with exits({Misconfigured: BadConfig, PairFault: RequestFailed}):
            yield
    except StoreLocked as error:
        raise BadConfig(f"{error}; give each server a ballot file of its own") from None
    except StoreDamaged as error:
        raise DiskFailed(f"{error}; check the path; with both servers stopped a damaged file may be removed") from None
    except OSError as error:
        if error.filename is None:
            raise
        raise DiskFailed(file_problem(error)) from None
