"""specs/zmtp.md names every rule once, and only code and tests that exist."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "specs" / "zmtp.md").read_text(encoding="utf-8")
RULES = {"ZMTP": 87, "PLAIN": 10, "CURVE": 18, "Z85": 1, "ZAP": 12}
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if re.match(r"\| (ZMTP|PLAIN|CURVE|Z85|ZAP)-\d\d", line)
]


def rules_of(cell: str) -> list[str]:
    family = cell.split("-")[0]
    return [f"{family}-{number}" for number in re.findall(r"\d\d", cell.removeprefix(family))]


def test_every_rule_has_one_row() -> None:
    listed = Counter(rule for row in ROWS for rule in rules_of(row[0]))
    assert listed == Counter(f"{family}-{number:02}" for family, last in RULES.items() for number in range(1, last + 1))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_code_and_tests_of_a_row_exist(row: list[str]) -> None:
    _, _, code, tests, built = row
    assert built.startswith(("yes", "no"))
    for name in re.findall(r"`([^`]+)`", tests):
        assert (ROOT / "tests" / name).is_file()
    if built == "yes":
        assert tests
        assert code


@pytest.mark.parametrize("row", [row for row in ROWS if row[4] == "yes"], ids=lambda row: row[0])
def test_a_test_of_the_row_names_each_rule(row: list[str]) -> None:
    text = "".join((ROOT / "tests" / name).read_text(encoding="utf-8") for name in re.findall(r"`([^`]+)`", row[3]))
    named = set(re.findall(r"(?:zmtp|plain|curve|z85|zap)_\d\d", text.lower()))
    named |= {rule.lower().replace("-", "_") for rule in re.findall(r"(?:ZMTP|PLAIN|CURVE|Z85|ZAP)-\d\d", text)}
    assert {rule.lower().replace("-", "_") for rule in rules_of(row[0])} <= named
