"""Benchmarks run: every kind of work once, short and small. Results are not checked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import pytest

from benchmarks import __main__ as command
from benchmarks import picture, table
from benchmarks.open_loop import SHARES
from benchmarks.process import ProgramFailed
from benchmarks.servers import absent
from benchmarks.work import Conditions, Result, Row, Variant, Work, run_work

if TYPE_CHECKING:
    from pathlib import Path

BRIEF = Conditions(cpu=None, seconds=0.05, warmup_s=0.02, scale=0.001)
# The same variants with messages of another size, or over ipc, or of another dialect; echo-1k is what the test of the command runs.
ALIKE = {"echo-1k", "one-way-1k", "one-way-64k", "mdp-one-ipc", "sizes", "shards"}
WORKS = [work for work in command.ALL if work.name not in ALIKE]


@pytest.mark.parametrize("work", WORKS, ids=[work.name for work in WORKS])
def test_every_variant_of_every_work_runs(work: Work) -> None:
    passes = sorted({row.sides for row in work.rows})  # nobody looks at the others
    result = run_work(work, 1, [(passes[-1], BRIEF)], say=lambda _: None)
    result.runs |= dict.fromkeys(passes, result.runs[passes[-1]])  # nothing is pinned here: both are alike
    assert set(result.absent) <= {variant.name for variant in work.variants if variant.absent()}  # installed nowhere but for this
    for row in work.rows:
        # The system counts the CPU time of another process in steps of 10 ms: none may be over in so short a run.
        if result.absent.keys().isdisjoint((row.ours, row.peer)) and row.figure != "broker_us":
            assert result.ratio(row, row.sides) is not None, row
    for variant in work.variants:
        if variant.name in result.absent:
            continue
        assert all(value >= 0 for sides in passes for run in result.runs[sides][variant.name] for value in run.values())


def test_variants_take_turns_and_medians_are_compared() -> None:
    order: list[str] = []
    rates = {"ours": iter([30.0, 10.0, 20.0]), "peer": iter([1.0, 5.0, 4.0])}

    def measured(name: str) -> Variant:
        def measure(conditions: Conditions) -> dict[str, float]:
            order.append(name)
            return {"rate": next(rates[name]), "cpu_us": 2.0 if name == "ours" else 8.0}

        return Variant(name, measure)

    reached, missed = Row("work", "ours", "peer", 5.0), Row("work", "ours", "peer", 5.1)
    work = Work("work", (measured("ours"), measured("peer")), (reached, missed))
    result = run_work(work, 3, [("pinned", BRIEF)], say=lambda _: None)
    assert order == ["ours", "peer"] * 3
    assert result.ratio(reached, "pinned") == 5.0
    assert result.by_cpu(reached) == 4.0
    assert result.reached(reached) is True
    assert result.reached(missed) is False
    assert table.missed([result]) == 1
    assert "5.00×" in table.text([result])


def test_a_variant_that_is_not_installed_is_left_out_with_one_line() -> None:
    said: list[str] = []
    there, gone = Row("work", "ours", None, None), Row("work", "ours", "peer", 5.0)
    variants = Variant("ours", lambda _: {"rate": 3.0}), Variant("peer", lambda _: {"rate": 1.0}, lambda: "no peerd")
    result = run_work(Work("work", variants, (there, gone)), 2, [("pinned", BRIEF)], said.append)
    assert said[0] == "work: peer is left out: no peerd"
    assert [row[:3] for row in table.rows_of([result])] == [("work", "ours", "–")]
    assert table.text([result]).splitlines()[-1] == table.markdown([result]).splitlines()[-1] == "left out: peer: no peerd"
    assert (table.missed([result]), table.medians([result])) == (0, {"work": {"pinned": {"ours": {"rate": 3.0}}}})


@pytest.mark.parametrize("failures", [1, 2])
def test_a_measurement_that_fails_is_made_once_more(failures: int) -> None:
    said: list[str] = []

    def measure(conditions: Conditions) -> dict[str, float]:
        if len(attempts) < failures:
            attempts.append(1)
            raise ProgramFailed("peer: ended with 1")
        return {"rate": 3.0}

    attempts: list[int] = []
    work = Work("work", (Variant("peer", measure),), ())
    if failures == 2:
        with pytest.raises(ProgramFailed):
            run_work(work, 2, [("pinned", BRIEF)], said.append)
    else:
        assert run_work(work, 2, [("pinned", BRIEF)], said.append).median("pinned", "peer", "rate") == 3.0
    assert said[0] == "work pinned 1/2 peer is measured again: peer: ended with 1"


def test_what_is_absent_is_named() -> None:
    assert absent(programs=("python3",), modules=("json",)) == ""
    assert absent(programs=("no-such-server",), modules=("no_such_module",)) == (
        "no no-such-server (Debian: apt-get install no-such-server), no module no_such_module (pip install '.[bench]')"
    )


def test_the_open_loop_is_drawn() -> None:
    shares = {f"{name}_{share}": share / 10 for share in SHARES for name in ("p50", "p99")}
    work = Work(
        "open-loop", (Variant("ours <&>", lambda _: {"rate": 20_000.0, **shares}), Variant("peer", lambda _: {"rate": 900.0, **shares})), ()
    )
    result = run_work(work, 1, [("free", BRIEF)], say=lambda _: None)
    facts = {"date": "2026-01-02", "processor": "one & only", "cpus": "2", "load before": "0.1"}
    drawn = ElementTree.fromstring(picture.open_loop(result, facts))
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}polyline"))) == 4
    assert len(list(drawn.iter("{http://www.w3.org/2000/svg}circle"))) == 4 * len(SHARES)
    texts = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"ours <&>", "peer", "requests/s"} <= set(texts)


def test_results_are_written_to_the_page_the_history_and_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README.md").write_text("<!-- table -->\n<!-- end of table -->\n")
    (tmp_path / "page.md").write_text("<!-- table -->\n<!-- end of table -->\n")
    for name, place in {"README": "README.md", "PAGE": "page.md", "HISTORY": "history", "PICTURE": "performance.svg"}.items():
        monkeypatch.setattr(command, name, tmp_path / place)
    monkeypatch.setattr(command, "FOR_USERS", ("capacity", "no such row"))
    facts = {"date": "2026-01-02", "processor": "p", "cpus": "2", "python": "3.11", "load before": "0.1"}
    shares = {f"{name}_{share}": 1.0 for share in SHARES for name in ("p50", "p99")}
    variants = Variant("ours", lambda _: {"rate": 20.0, **shares}), Variant("peer", lambda _: {"rate": 10.0, **shares})
    work = Work("open-loop", variants, (Row("capacity", "ours", "peer", None, sides="free"), Row("capacity", "ours", None, None)))
    command.write([run_work(work, 1, [("free", BRIEF)], say=lambda _: None)], facts)
    assert "- date: 2026-01-02" in (tmp_path / "README.md").read_text()
    assert json.loads((tmp_path / "history" / "2026-01-02.json").read_text())["medians"]["open-loop"]["free"]["ours"]["rate"] == 20.0
    assert (tmp_path / "performance.svg").read_text().startswith("<svg")
    assert (tmp_path / "page.md").read_text().splitlines()[3:] == [
        "| work | ours | compared with | times as fast | by CPU time |",
        "| --- | --- | --- | --- | --- |",
        "| capacity | ours | peer | 2.00× | – |",
        "<!-- end of table -->",
    ]


def test_the_table_goes_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("before\n<!-- table -->\nold\n<!-- end of table -->\nafter\n")
    table.put_into(page, table.markdown([Result(Work("none", (), ()))]))
    text = page.read_text()
    assert text.startswith("before\n<!-- table -->\n| work |")
    assert text.endswith("<!-- end of table -->\nafter\n")
    assert "old" not in text


def test_the_command_runs_one_work_and_keeps_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "LATEST", tmp_path / "latest.json")
    assert command.main(["--quick", "--only", "echo-1k", "--pinned-only"]) == 0
    assert "echo 1 KiB" in capsys.readouterr().out
    saved = json.loads((tmp_path / "latest.json").read_text())
    assert len(saved["works"]["echo-1k"]["pinned"]["await"]) == 1
    assert "load before" in saved["machine"]
