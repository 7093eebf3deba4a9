"""Child processes: started again when they end, stopped together, and a failure where starting again is useless."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

import pytest

from core.processes.children import Child, ChildFailed, Children
from core.runtime import supervision
from core.runtime.supervision import Restart, Supervisor
from tests.scenes.fault_injection import Saboteur
from tests.scenes.waiting import PATIENCE_S, eventually

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="processes of one command need POSIX")

# A child that reports, and then waits for a signal or for the end of its parent.
PROGRAM = """
import asyncio, json, os, signal, sys
from core.processes.parent import Parent

async def main():
    parent, stop = Parent.found_in(os.environ), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    parent.watch(loop, stop.set, stop.set)
    parent.tell({"ready": "serves", "inherited": sorted(name for name in os.environ if name.startswith(("MAJORDOMO_PARENT", "NOTIFY")))})
    await stop.wait()

asyncio.run(main())
"""
QUICK = Restart(first_s=0.001, most_s=0.01)


def program(text: str) -> Callable[[int], list[str]]:
    return lambda _: [sys.executable, "-c", text]


async def until_dead(pid: int) -> None:
    def dead() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        return False

    await eventually(dead)


async def test_children_serve_and_end_with_the_block(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with asyncio.timeout(PATIENCE_S), Children(3, program(PROGRAM), name="child") as children:
        await children.until_ready()
        pids = children.pids
        assert len(set(pids)) == 3
    for pid in pids:
        await until_dead(pid)
    assert [record.getMessage() for record in caplog.records].count("process ended") == 3
    assert {getattr(record, "exit_code", None) for record in caplog.records if record.getMessage() == "process ended"} == {0}


async def test_a_killed_child_is_started_again_and_the_others_stay(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(PATIENCE_S), Children(2, program(PROGRAM), name="child", restart=QUICK) as children:
        await children.until_ready()
        killed, other = children.pids
        os.kill(killed, signal.SIGKILL)
        await eventually(lambda: children.all[0].starts == 2)
        await children.until_ready()
        assert children.all[0].pid != killed
        assert children.all[1].pid == other
    (line,) = [record for record in caplog.records if record.getMessage() == "process ended, it is started again"]
    assert vars(line)["signal"] == "SIGKILL"


async def test_a_child_that_ends_with_0_is_started_again_too() -> None:
    async with asyncio.timeout(PATIENCE_S), Children(1, program(PROGRAM), name="child", restart=QUICK) as children:
        await children.until_ready()
        children.signal(signal.SIGTERM)
        await eventually(lambda: children.all[0].starts == 2)
        await children.until_ready()


async def test_a_child_that_can_never_start_is_a_failure_with_its_exit_code() -> None:
    async with asyncio.timeout(PATIENCE_S), Children(1, program("raise SystemExit(78)"), name="child") as children:
        with pytest.raises(ChildFailed, match="child 0 ended with exit code 78") as failed:
            await children.until_ready()
        assert failed.value.exit_code == 78
        with pytest.raises(ChildFailed):
            await children.until_failed()
    assert children.all[0].starts == 1


async def test_a_tolerant_parent_waits_for_the_next_start(tmp_path: Path) -> None:
    source = tmp_path / "child.py"
    source.write_text("raise SystemExit(1)")
    ended: list[Child] = []
    command = [sys.executable, str(source)]
    async with asyncio.timeout(PATIENCE_S), Children(1, lambda _: command, name="x", is_tolerant=True, on_change=ended.append) as children:
        await eventually(lambda: ended)
        source.write_text(PROGRAM)
        children.restart_all()
        await children.until_ready()


@pytest.mark.faults
async def test_children_are_kept_after_a_fault_of_ours() -> None:
    with supervision.scope(Supervisor(Saboteur(["child process"]))) as supervisor:
        async with asyncio.timeout(PATIENCE_S), Children(2, program(PROGRAM), name="child") as children:
            await children.until_ready()
    assert supervisor.faults == {"child process": 1}


async def test_messages_arrive_and_the_channel_is_not_inherited_further() -> None:
    got: list[dict[str, Any]] = []
    children = Children(1, program(PROGRAM), name="child", on_message=lambda _, message: got.append(message))
    async with asyncio.timeout(PATIENCE_S), children:
        await children.until_ready()
    assert got == [{"ready": "serves", "inherited": []}]


async def test_a_message_that_is_too_long_is_left_out_and_the_child_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    wordy = PROGRAM.replace("await stop.wait()", "parent.tell({'long': 'x' * 5_000_000})\n    await later(parent, stop)")
    wordy += """
async def later(parent, stop):
    while not stop.is_set():
        parent.tell({"later": ""})
        await asyncio.sleep(0.01)

asyncio.run(main())
"""
    wordy = wordy.replace("asyncio.run(main())", "", 1)
    got: list[str] = []
    children = Children(1, program(wordy), name="child", restart=QUICK, on_message=lambda _, message: got.extend(message))
    async with asyncio.timeout(PATIENCE_S), children:
        await eventually(lambda: "later" in got)
        assert children.all[0].starts == 1
    assert "long" not in got
    assert "a message of a process cannot be read" in caplog.text


async def test_a_child_that_is_killed_while_it_sends_is_started_again_without_a_fault() -> None:
    torn = "import os, signal; os.write(int(os.environ['MAJORDOMO_PARENT_FD']), b'{\"page\": '); os.kill(os.getpid(), signal.SIGKILL)"
    with supervision.scope(Supervisor()) as supervisor:
        async with asyncio.timeout(PATIENCE_S), Children(1, program(torn), name="child", restart=QUICK) as children:
            await eventually(lambda: children.all[0].starts > 2)
    assert supervisor.faults == {}


async def test_a_child_that_is_killed_before_it_has_read_that_it_should_stop_is_no_fault() -> None:
    deaf = "import os, time; os.write(int(os.environ['MAJORDOMO_PARENT_FD']), b'{\"ready\": \"\"}\\n'); time.sleep(600)"
    with supervision.scope(Supervisor()) as supervisor:
        async with asyncio.timeout(PATIENCE_S), Children(1, program(deaf), name="child", restart=QUICK) as children:
            await children.until_ready()
            children.restart_all()
            children.signal(signal.SIGKILL)
            await eventually(lambda: children.all[0].starts == 2)
            await children.until_ready()
            drained = asyncio.ensure_future(children.drain())
            await asyncio.sleep(0)  # it is sent
            children.signal(signal.SIGKILL)
            await drained
    assert supervisor.faults == {}


async def test_a_child_that_starts_reads_its_files_again_when_it_serves(tmp_path: Path) -> None:
    go, again = tmp_path / "go", tmp_path / "again"
    slow = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n" + PROGRAM.replace(
        "    parent.watch", f"    loop.add_signal_handler(signal.SIGHUP, open, {str(again)!r}, 'x')\n    parent.watch"
    )
    async with asyncio.timeout(PATIENCE_S), Children(1, program(slow), name="child") as children:
        await eventually(lambda: children.all[0].starts == 1)
        children.reread()
        go.touch()
        await children.until_ready()
        await eventually(again.exists)
        assert children.all[0].starts == 1


async def test_children_end_when_their_parent_is_killed() -> None:
    parent = f"""
import asyncio, sys
from core.processes.children import Children

async def main():
    async with Children(2, lambda _: [sys.executable, "-c", {PROGRAM!r}], name="child") as children:
        await children.until_ready()
        print(*children.pids, flush=True)
        await children.until_failed()

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", parent, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_S):
        pids = [int(word) for word in (await process.stdout.readline()).split()]
        assert len(pids) == 2
        process.kill()
        await process.wait()
        for pid in pids:
            await until_dead(pid)


async def test_a_child_that_does_not_stop_is_killed_when_the_block_is_cancelled() -> None:
    deaf = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN);" + PROGRAM.replace("stop.set", "print")
    pids: list[int] = []

    async def serve() -> None:
        async with Children(1, program(deaf), name="child") as children:
            await children.until_ready()
            pids.extend(children.pids)

    task = asyncio.ensure_future(serve())
    async with asyncio.timeout(PATIENCE_S):
        await eventually(lambda: pids)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until_dead(pids[0])
