"""Benchmarks run: every work once, short and small. Results are not checked."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from benchmarks import __main__ as command
from benchmarks import table
from benchmarks.work import Conditions, Result, Row, Variant, Work, run_work

if TYPE_CHECKING:
    from pathlib import Path

BRIEF = Conditions(cpu=None, seconds=0.05, warmup_s=0.02, scale=0.001)


@pytest.mark.parametrize("work", command.ALL, ids=[work.name for work in command.ALL])
def test_every_variant_of_every_work_runs(work: Work) -> None:
    passes = {row.sides for row in work.rows}  # nobody looks at the others
    result = run_work(work, 1, [(sides, BRIEF) for sides in passes], say=lambda _: None)
    for row in work.rows:
        assert result.ratio(row, row.sides) is not None, row
    for variant in work.variants:
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
