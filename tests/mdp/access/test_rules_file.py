"""mdp.access.rules_file: the line that an error names, and reading a file again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.daemon.exit_codes import BadConfig
from mdp.access.rules_file import load_rules, reloading

if TYPE_CHECKING:
    from pathlib import Path

    from mdp.access.rules import Rules

GOOD = "[[allow]]\nwho = ['a']\ncall = ['x']\n"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param(GOOD + "[[allow]]\nwho = ['b']\n" + GOOD, 4, id="what is missing: the head of its table"),
        pytest.param(GOOD + "\n[[allow]]\ncall = ['x']\n", 5, id="what is missing in the last: its head, not the one before"),
        pytest.param("[[allow]]\nwho = ['a']\n'call' = []\n" + GOOD, 3, id="a quoted key: its line"),
        pytest.param('[[allow]]\nwho = ["a"]\n"c\\u0061ll" = []\n' + GOOD, 1, id="an escaped key: its table, not the same key of another"),
        pytest.param(GOOD + '[[allow]]\nwho = ["a"]\n"c\\u0061ll" = []\n' + GOOD, 4, id="an escaped key in the second"),
    ],
)
def test_an_error_names_the_line_of_its_key_or_of_its_table(tmp_path: Path, text: str, line: int) -> None:
    """Fault X1."""
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(BadConfig) as refused:
        load_rules(str(path))
    assert refused.value.message.startswith(f"{path}:{line}: ")


def test_a_file_that_is_read_again_replaces_the_rules_when_it_is_applied_and_a_bad_one_never(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    replaced: list[Rules] = []
    prepare = reloading(str(path), load_rules, replaced.append)
    path.write_text(GOOD)
    apply = prepare()
    assert replaced == []
    assert apply() == []
    assert [rules.rights_of("a").may("call", b"x") for rules in replaced] == [True]
    path.write_text("[[allow]]\n")
    with pytest.raises(BadConfig):
        prepare()
    assert len(replaced) == 1
