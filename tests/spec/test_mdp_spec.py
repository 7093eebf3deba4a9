"""specs/mdp.md keeps its word.

Every rule has a row, and the code and tests it names are there and know of the rule.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mdp.broker.counters import Counters
from mdp.broker.limits import BrokerOptions
from mdp.errors import RequestError
from tests.scenes.builds import has_no_docstring

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "specs" / "mdp.md").read_text(encoding="utf-8")
ROWS = {
    cells[0]: cells
    for line in TEXT.splitlines()
    if len(cells := [cell.strip() for cell in line.strip().strip("|").split("|")]) == 5 and re.fullmatch(r"[A-Z]{3}-\d\d", cells[0])
}
RULES = [
    *(f"MDP-{n:02}" for n in range(1, 48)),
    *(f"MMI-{n:02}" for n in range(1, 11)),
    *(f"IDM-{n:02}" for n in range(1, 6)),
    *(f"SHD-{n:02}" for n in range(1, 16)),
]


def rules_in(text: str) -> set[str]:
    """Return the rules a text names: `MDP-26`, and those of `MDP-26 to MDP-30` and `MDP-26, 30, 31`."""
    found: set[str] = set()
    for begun, first, others in re.findall(r"\b([A-Z]{3})-(\d\d)((?:(?:, | and | to )(?:[A-Z]{3}-)?\d\d\b)*)", text):
        family, last = begun, int(first)
        found.add(f"{family}-{first}")
        for joined_by, named, number in re.findall(r"(, | and | to )(?:([A-Z]{3})-)?(\d\d)", others):
            family = named or family
            start = last if joined_by == " to " else int(number)
            last = int(number)
            found |= {f"{family}-{n:02}" for n in range(start, last + 1)}
    return found


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_has_a_row(rule: str) -> None:
    assert ROWS[rule][4] == "yes"


@pytest.mark.parametrize("rule", ROWS)
def test_what_a_row_names_is_there_and_knows_the_rule(rule: str) -> None:
    _, how, code, tests, _ = ROWS[rule]
    assert how
    named = re.findall(r"`([\w/.]+\.py)`", code)
    assert named
    assert all((ROOT / path).is_file() for path in named)
    tested_in = re.findall(r"`([\w/.]+\.py)`", tests)
    assert tested_in
    unaware = [path for path in tested_in if rule not in rules_in((ROOT / "tests" / path).read_text(encoding="utf-8"))]
    assert unaware == []


def test_every_test_that_is_named_is_there() -> None:
    named = set(re.findall(r"`((?:mdp|spec|interop)/[\w/]*test_[\w/]+\.py)`", TEXT))
    assert len(named) > 30
    assert [path for path in sorted(named) if not (ROOT / "tests" / path).is_file()] == []


def test_every_code_is_explained() -> None:
    on_the_wire = [code for code, kind in RequestError.by_code.items() if kind.__module__ == "mdp.errors"]
    assert on_the_wire
    assert all(f"| `{code}` |" in TEXT for code in on_the_wire)


def test_limits_that_are_mentioned_exist() -> None:
    names = set(BrokerOptions.__dataclass_fields__)
    mentioned = set(re.findall(r"`(\w+_(?:ms|max|max_bytes))`", TEXT)) - {"deadline_ms", "silent_ms", "age_ms"}
    assert mentioned
    assert mentioned <= names


@has_no_docstring
def test_every_counter_is_explained() -> None:
    """BEY-16: what is counted says what it counts."""
    text = (ROOT / "mdp" / "broker" / "counters.py").read_text(encoding="utf-8")
    families = ("error_", "silent_", "invalid_")
    explained = set(re.findall(r"^    (\w+): int = 0  # ", text, re.M)) | set(re.findall(r"^    # .*\n    (\w+): int = 0$", text, re.M))
    missing = [name for name in Counters().as_dict() if not name.startswith(families) and name not in explained]
    assert missing == []
    assert all(f"    # {family}*: " in text for family in families)
