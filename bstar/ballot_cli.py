"""Command `bstar ballot`: show a ballot file, or replace a damaged one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from bstar.errors import StoreDamaged
from bstar.machine.ballot import COUNTER_MAX, Ballot, Record, RecordRole
from bstar.net.ballot_file import BallotFile, read_ballot_file
from bstar.pair_options import pair_errors
from core.daemon.command import Documented
from core.daemon.exit_codes import DiskFailed
from core.daemon.terminal import json_option, write_json
from core.runtime import runtime

if TYPE_CHECKING:
    from bstar.machine.ballot_slots import Contents

_OWNERS: Final = {"server": RecordRole.SERVER, "witness": RecordRole.WITNESS}


class _Group(Documented, click.Group):
    command_class = Documented


@click.group(cls=_Group, name="ballot")
def ballot() -> None:
    """Show or reset a ballot file."""


@ballot.command()
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False))
@json_option()
def show(path: str, as_json: bool) -> None:
    """Show the contents of a ballot file; its owner may be running."""
    with pair_errors():
        owner, contents = _found(path)
    words = _words(owner, contents)
    if as_json:
        write_json(words)
    else:
        click.echo("\n".join(f"{name}: {value}" for name, value in words.items()))


@ballot.command()
@click.argument("path", metavar="FILE", type=click.Path(dir_okay=False))
@click.option("--owner", type=click.Choice([*_OWNERS]), help="Owner of the file, if it cannot be read.")
@click.option(
    "--counter",
    type=click.IntRange(0, COUNTER_MAX),
    default=0,
    help="First counter: at least the highest that either server, the witness or a client knows.",
)
@click.option("--yes", is_flag=True, help="Confirm that both servers and the witness are stopped.")
def reset(path: str, owner: str | None, counter: int, yes: bool) -> None:
    """Replace a ballot file by a new one. Stop both servers and the witness, and reset all three files alike."""
    if not yes:
        raise click.UsageError("stop both servers and the witness, then give --yes: a lower counter means a ballot used twice")
    with pair_errors():
        kind = _OWNERS[owner] if owner is not None else _found(path)[0]
        fresh = (
            Record(kind, runtime.current().random_bits(64) | 1, 0, counter)
            if kind is RecordRole.SERVER or counter
            else Record(kind, 0, 0, 0)
        )
        with BallotFile(path, kind) as store:
            store.replace(fresh)
    click.echo(f"{path}: begins anew at {counter}")


def _found(path: str) -> tuple[RecordRole, Contents]:
    for owner in RecordRole:
        try:
            contents = read_ballot_file(Path(path), owner)
        except StoreDamaged as error:
            if "belongs to" not in error.reason:
                raise
            continue
        if contents is None:
            raise DiskFailed(f"{path}: there is no such file; give the path of --store, or --bstar-store, of a server or witness")
        return owner, contents
    raise AssertionError("a file belongs to one of them")


def _words(owner: RecordRole, contents: Contents) -> dict[str, Any]:
    record = contents.record
    words: dict[str, Any] = {"owner": owner.name.lower()}
    if owner is RecordRole.SERVER:
        words |= {"node": f"{record.node:016x}", "counter": record.counter}
    else:
        words["highest"] = str(Ballot(record.counter, record.node))
    return words | {"incarnation": record.incarnation, "copies": contents.whole or 1, "left": COUNTER_MAX - record.counter}
