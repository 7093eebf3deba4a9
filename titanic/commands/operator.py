"""Operator commands of `titanic` on a store that is not served: verify, repair, promote, compact, ls, export."""

from __future__ import annotations

import sys
from contextlib import closing, contextmanager, nullcontext
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from core.daemon.command import CONNECT, Group
from core.daemon.exit_codes import BadConfig, DiskFailed, ExitError, RequestFailed, Unreachable, exits, file_problem
from core.daemon.run import log_options, loop_option
from core.daemon.security_flags import security_options
from core.daemon.terminal import json_option, write_json
from core.runtime import runtime
from titanic.commands.client_options import ask
from titanic.commands.export import FORMATS, export_rows, write_rows
from titanic.errors import JournalError, StoreLocked, TitanicError, VersionTooNew, Wounded
from titanic.journal.disk import ReadingDisk, RealDisk
from titanic.journal.inspection import MANIFEST_NAME
from titanic.journal.ownership import MARK_NAME, Mark, Step, check_is_store, read_mark, write_mark
from titanic.journal.segment_log import LogOptions, SegmentLog
from titanic.mirror.replica_directory import lineage_at
from titanic.mirror.succession import FORCED, LineageKind
from titanic.store.compaction import checkpoint_of
from titanic.store.compaction import compact as compact_segments
from titanic.store.index.limits import Limits
from titanic.store.index.request_index import RequestIndex
from titanic.store.repair import check, read_store
from titanic.store.repair import repair as repair_store
from titanic.store.status import PAGE_MAX as ROWS_AT_ONCE
from titanic.store.status import entry_row

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence

    from core.security.credentials import Secured
    from titanic.client import Client

T = TypeVar("T")
_STORE: Final = click.option(
    "--store", type=click.Path(exists=True, file_okay=False), required=True, help="Directory of the store; it must not be served."
)
_JSON: Final = json_option("Print JSON.")


class StoreDamaged(ExitError):
    """The store is damaged or incomplete."""

    exit_code = 3


@click.group(cls=Group)
def operator() -> None:
    """Operator commands, added to `titanic.commands.main`."""


@contextmanager
def disk_errors(store: str | None) -> Iterator[None]:
    try:
        with exits({StoreLocked: Unreachable, Wounded: DiskFailed}):
            yield
    except VersionTooNew as error:
        raise BadConfig(f"{error}; use the newer program") from None
    except JournalError as error:
        if error.name == "MIRROR":
            raise BadConfig(str(error)) from None
        raise StoreDamaged(f"{error}; check with titanic verify, repair with titanic repair --accept-loss") from None
    except OSError as error:
        raise DiskFailed(file_problem(error, error.filename or store or "the store")) from None


@contextmanager
def _held(store: str, kind: type[RealDisk] = RealDisk) -> Iterator[RealDisk]:
    """Lock a store that is not served."""
    with disk_errors(store):
        disk = kind(store)
        _check_is_there(disk)
        disk.lock()
        try:
            yield disk
        finally:
            disk.unlock()


def _check_is_there(disk: RealDisk) -> None:
    """Refuse a directory without a store: it is probably the wrong path, and must not be reported as healthy."""
    if not any(name in (MANIFEST_NAME, MARK_NAME) or name.endswith(".seg") for name in disk.names()):
        raise RequestFailed(f"{disk.directory} holds no store")


@operator.command()
@_STORE
@_JSON
@log_options("warning")
def verify(store: str, as_json: bool) -> None:
    """Read every record of a store, without changes; exit 3 if it is damaged, after naming each damaged record."""
    began = runtime.current().monotonic()
    with _held(store, ReadingDisk) as disk:
        problems, records, octets = check(disk)
    elapsed_s = runtime.current().monotonic() - began
    if as_json:
        rows = [problem._asdict() | {"uuid": problem.uuid.hex().upper()} for problem in problems]
        write_json({"records": records, "bytes": octets, "problems": rows})
    else:
        for problem in problems:
            click.echo(str(problem))
        click.echo(f"{records} records, {octets} bytes read in {elapsed_s:.1f} s")
    if problems:
        raise StoreDamaged(f"{store}: {len(problems)} problems")


@operator.command()
@_STORE
@click.option("--accept-loss", is_flag=True, help="Continue without what cannot be read; it is kept under other names.")
@log_options("warning")
def repair(store: str, accept_loss: bool) -> None:
    """Repair a damaged store, so that it starts and is no longer degraded."""
    with _held(store) as disk:
        check_is_store(disk)
        problems, _, _ = check(disk)
        repaired = bool(problems) and accept_loss
        said = repair_store(disk, runtime.current().random_bytes(16)) if repaired else [str(problem) for problem in problems]
    if repaired:
        _restart(store, lambda log, index: None)
        said.append("repaired")
    for line in said or ["nothing to repair"]:
        click.echo(line)
    if problems and not repaired:
        raise StoreDamaged(f"{store}: {len(problems)} problems; with --accept-loss the store continues without the lost records")


# A command does not know the limits of the daemon, which forgets what is beyond them.
ALL_KEYS: Final = 2**53


def _restart(store: str, work: Callable[[SegmentLog, RequestIndex], T]) -> T:
    """Open a store as the daemon does, run `work`, write a checkpoint, and close it; return the result."""
    with disk_errors(store):
        index = RequestIndex(Limits(keys_max=ALL_KEYS))
        disk = RealDisk(store)
        _check_is_there(disk)
        log = SegmentLog.open(disk, LogOptions(), index, store=runtime.current().random_bytes(16))
        try:
            result = work(log, index)
            log.write_checkpoint(checkpoint_of(log, index))
            return result
        except TitanicError as error:
            raise DiskFailed(str(error)) from None
        finally:
            log.close()


@operator.command()
@_STORE
@click.option(
    "--accept-loss",
    is_flag=True,
    help="Promote half of a pair, or a mirror not in step or whose disk failed: what it lacks is lost.",
)
@log_options("warning")
def promote(store: str, accept_loss: bool) -> None:
    """Make a mirror the store, after the machine of the store was lost or stopped permanently.

    Half of a pair gets the right to serve without the other half, whatever data that has.
    """
    with _held(store) as disk:
        mark = read_mark(disk)
        promoted = _promote_one_of_two if mark is not None and mark.paired else _promote_mirror
        said = promoted(disk, mark or Mark(), accept_loss)
    click.echo(said)


def _promote_mirror(disk: RealDisk, mark: Mark, accept_loss: bool) -> str:
    """Make a mirror the store; return the message for the operator."""
    where = disk.directory
    if mark.role != "mirror":
        raise RequestFailed(f"{where} is no mirror")
    if (mark.doubt or mark.step is not Step.IN_STEP) and not accept_loss:
        why = "in doubt: its disk failed" if mark.doubt else f"{mark.step.value}, not in step"
        raise StoreDamaged(f"the mirror in {where} is {why}; --accept-loss promotes what it holds")
    write_mark(disk, Mark("store", mark.epoch + 1, store=mark.store))
    return f"promoted, epoch {mark.epoch + 1}; serve it with titanic serve --store {where}"


def _promote_one_of_two(disk: RealDisk, mark: Mark, accept_loss: bool) -> str:
    """Give half of a pair the right to serve alone; return the message for the operator."""
    lineage = lineage_at(disk)
    where = disk.directory
    if lineage.kind is LineageKind.NOTHING:
        raise RequestFailed(f"{where} holds no store")
    if lineage.kind is LineageKind.SOLE:
        return "it may serve alone already; nothing changed"
    lost = {
        LineageKind.SPOILT: "its files were being exchanged, and what cannot be read of them is lost",
        LineageKind.BEHIND: "what the other half acknowledged while this one was away is lost",
        LineageKind.WHOLE: "if the other half acknowledged alone, that is lost",
    }[lineage.kind]
    if not accept_loss:
        raise StoreDamaged(f"{where} is {lineage.kind.name.lower()} at epoch {mark.epoch}: {lost}; --accept-loss makes it so")
    write_mark(disk, mark._replace(role="store", epoch=mark.epoch + FORCED, step=Step.IN_STEP, alone=True, doubt=False))
    return f"promoted, epoch {mark.epoch + FORCED}; {lost}, and its data are replaced when it comes back"


@operator.command()
@_STORE
@log_options("warning")
def compact(store: str) -> None:
    """Free the disk space of closed requests, and write a checkpoint."""
    dropped, moved = _restart(store, compact_segments)
    click.echo(f"{dropped} segments dropped, {moved} records kept")


def _say_state(state: str, problems: int) -> None:
    if state != "serving":
        click.echo(f"titanic: the store is {state}, {problems} problems", err=True)


@operator.command()
@click.option("--store", type=click.Path(exists=True, file_okay=False), help="Directory of a store that is not served.")
@click.option("--broker", "brokers", type=CONNECT, multiple=True, help="Broker of a store that serves; repeated, in order of preference.")
@_JSON
@click.option("--service", help="Only requests for this service.")
@click.option("--status", is_flag=True, help="Only state and metrics of a store that serves, as JSON.")
@loop_option
@log_options("warning")
@security_options(connects=True, required=False)
def ls(
    store: str | None,
    brokers: tuple[str, ...],
    as_json: bool,
    service: str | None,
    status: bool,
    security: Secured | None,
    uvloop: bool | None,
) -> None:
    """List the requests of a store: UUID, state, service, age in seconds, attempts; warn about the store on stderr."""
    if (store is None) == (not brokers) or (status and not brokers):
        raise click.UsageError("which store? give either --store DIR or --broker ENDPOINT; --status goes with --broker")
    rows = _rows_of(store, service) if store is not None else _rows_at(brokers, service, status, uvloop, security)
    for row in rows:
        if as_json or status:
            write_json(row)
        else:
            click.echo("{uuid}  {state:8}  {service}  {age_s:.0f}  {attempts}".format(**row))


def _rows_of(store: str, service: str | None) -> Iterator[dict[str, Any]]:
    with _held(store, ReadingDisk) as disk:
        problems = check(disk)[0]
        _, index = read_store(disk)
    _say_state("degraded" if any(problem.code != "TORN" for problem in problems) else "serving", len(problems))
    now_ms = index.resume_clock(runtime.current().wall_ns() // 1_000_000)
    entries = [entry for entry in index.entries.values() if service is None or entry.service == service.encode()]
    for entry in sorted(entries, key=lambda entry: entry.accepted_ms):
        yield entry_row(entry, now_ms)


def _rows_at(
    brokers: Sequence[str], service: str | None, status: bool, uvloop: bool | None, security: Secured | None
) -> Iterator[dict[str, Any]]:
    async def talk(client: Client) -> list[dict[str, Any]]:
        state = await client.look("status")
        if status:
            return [state]
        _say_state(state["state"], state["problems"])
        return await _all_rows(client, service or "")

    yield from ask(talk, brokers, uvloop, security=security)


async def _all_rows(client: Client, service: str) -> list[dict[str, Any]]:
    """Read all pages; what is closed between two of them moves the places of the others down."""
    rows: dict[str, dict[str, Any]] = {}
    start, back = 0, ROWS_AT_ONCE
    while True:
        page = await client.look("requests", service, start, ROWS_AT_ONCE)
        if start and (not page or page[0]["uuid"] not in rows):  # each page begins with a row of the one before
            start, back = max(0, start - back), 2 * back
            continue
        rows |= {row["uuid"]: row for row in page}
        if len(page) < 2:
            return list(rows.values())
        start, back = start + len(page) - 1, ROWS_AT_ONCE


@operator.command()
@_STORE
@click.option("--output", type=click.Path(dir_okay=False), help="File to write.  [default: standard output]")
@click.option("--format", "form", type=click.Choice(FORMATS), default="jsonl", help="JSON lines with bodies in base64, msgpack, Parquet.")
@log_options("warning")
def export(store: str, output: str | None, form: str) -> None:
    """Write every request that is not closed, with its body and its reply or the reason why there is none."""
    if output is None and form == "parquet":
        raise click.UsageError("Parquet needs --output FILE")
    with closing(_exported(store)) as rows:
        first = list(islice(rows, 1))  # a store that cannot be read leaves an earlier file as it is
        try:
            with Path(output).open("wb") if output else nullcontext(sys.stdout.buffer) as file:
                write_rows(chain(first, rows), form, file)
        except ImportError as error:
            raise BadConfig(f"{error.name} is not installed; pip install pyarrow, or use another --format") from None
        except OSError as error:
            if output is None:
                raise
            raise DiskFailed(file_problem(error, output)) from None


def _exported(store: str) -> Generator[dict[str, Any], None, None]:
    """Read a store while it is locked; errors of its directory are raised here, apart from those of the output."""
    with _held(store, ReadingDisk) as disk:
        yield from export_rows(disk, runtime.current().wall_ns() // 1_000_000)
