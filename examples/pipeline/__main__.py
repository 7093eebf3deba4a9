"""`make pipeline`: files arrive, and each row of them is in the result exactly once, whatever is killed meanwhile.

    python -m examples.pipeline [--kill] [--output out/pipeline]

docs/pipeline.md tells what happens. The exit code is 0 if every row is in the result exactly once, with its right price.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import click

import mdp
from examples.pipeline.orders import drop_file, files_of_orders
from examples.pipeline.page import write_page
from examples.pipeline.parts import Parts

PAUSE_S = 0.5
FINISH_WITHIN_S = 400.0
# Parts that are killed after a third, a half, … of the files.
KILLS = ("worker", "broker", "store", "executor", "stream")


def kill(parts: Parts, name: str) -> int:
    """Kill a part and start it again, unless something else does that; return the process that was killed."""
    if name == "worker":  # the scaler starts another
        pid: int = json.loads(parts.scaler_log.read_text(encoding="utf-8").splitlines()[-1])["workers"][0]
    elif name == "executor":  # Spark starts another
        parts.wait_until(lambda: bool(parts.executor_pids()), "Spark has an executor")
        pid = parts.executor_pids()[0]
    else:
        program = parts.programs[name]
        pid = program.pid
        program.kill()
        program.start()
        return pid
    os.kill(pid, signal.SIGKILL)
    return pid


def run(parts: Parts, files: int, rows: int, *, with_kills: bool) -> list[dict[str, Any]]:
    """Let files arrive, kill parts while requests are open, wait for the result; return the marks for the page."""
    marks: list[dict[str, Any]] = []
    kills = {files * (number + 2) // (len(KILLS) + 2): name for number, name in enumerate(KILLS)} if with_kills else {}
    with mdp.SyncClient(parts.broker, timeout=2.0, attempts=1) as client:
        for number, orders in enumerate(files_of_orders(files, rows)):
            drop_file(parts.lake / "arrivals", f"{number:03}.csv", orders)
            marks.append({"time": time.time(), "rows": len(orders)})
            time.sleep(PAUSE_S)
            if number in kills:
                parts.wait_until(lambda: parts.work_is_open(client), "requests are open")
                pid = kill(parts, kills[number])
                marks.append({"time": time.time(), "kill": kills[number]})
                click.echo(f"killed     {kills[number]}, process {pid}, after {number + 1} of {files} files")
    (parts.lake / "last").touch()
    click.echo(f"arrived    {files} files of {rows} rows; waiting for the rest of the answers")
    parts.wait_until(parts.verdict.exists, "the result is checked", within_s=FINISH_WITHIN_S)
    return marks


@click.command()
@click.option("--output", type=click.Path(file_okay=False, path_type=Path), default=Path("out/pipeline"), help="It is emptied first.")
@click.option("--kill", "with_kills", is_flag=True, help="Kill every part once.")
@click.option("--files", default=24)
@click.option("--rows", default=250, help="Rows of a file.")
@click.option("--service-ms", default=40.0, help="Milliseconds the service takes for a row.")
def main(output: Path, with_kills: bool, files: int, rows: int, service_ms: float) -> None:
    """Run the pipeline."""
    place = output.absolute()
    shutil.rmtree(place, ignore_errors=True)
    began = time.monotonic()
    signal.signal(signal.SIGTERM, _end)  # stops the processes
    try:
        with Parts(place, service_ms) as parts:
            click.echo(f"live       {'http://' + parts.page if parts.page else 'no page: pip install aiohttp'}   Spark {parts.spark_page}")
            marks = run(parts, files, rows, with_kills=with_kills)
    except RuntimeError as error:
        raise click.ClickException(str(error)) from None
    verdict = json.loads(parts.verdict.read_text(encoding="utf-8"))
    looks = [json.loads(line) for line in parts.scaler_log.read_text(encoding="utf-8").splitlines()]
    write_page(place / "index.html", verdict, looks, marks)
    click.echo(
        f"rows       {verdict['arrived']:,} arrived, {verdict['priced']:,} in the result; {verdict['dead']} corrected and sent again"
    )
    click.echo(f"checked    {verdict['lost']} lost, {verdict['twice']} twice, {verdict['wrong']} wrong")
    click.echo(
        f"workers    1 to {max(len(look['workers']) for look in looks)}, queue of {max(look['queue'] or 0 for look in looks)} at most"
    )
    click.echo(f"written    {place}/index.html, lake/, logs/ in {time.monotonic() - began:.0f} s")
    good = verdict["arrived"] == verdict["priced"] == files * rows and not (verdict["lost"] or verdict["twice"] or verdict["wrong"])
    sys.exit(0 if good else 1)


def _end(number: int, frame: object) -> None:
    sys.exit(1)


if __name__ == "__main__":
    main()
