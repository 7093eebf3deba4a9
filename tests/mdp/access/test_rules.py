"""mdp.access.rules and mdp.access.rules_file: valid rules and their effects, and refusal of bad files."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.daemon.exit_codes import BadConfig
from mdp.access.rules import GLOBS_MAX, TABLES_MAX, VERBS, RuleError, Rules
from mdp.access.rules_file import load_rules

if TYPE_CHECKING:
    from pathlib import Path

    from mdp.access.rules import Verb

FILE = """\
[[allow]]
who = ["web-*", "cron"]
call = ["echo", "orders.*"]

[[allow]]
who = ["orders-worker"]
serve = ["orders.*"]

[[allow]]
who = ["root"]
call = ["*"]
manage = ["*"]

[[allow]]
anonymous = true
call = ["status"]
"""


@pytest.mark.parametrize(
    "user,verb,service,expected",
    [
        ("web-1", "call", b"echo", True),
        ("web-1", "call", b"orders.new", True),
        ("web-1", "call", b"orders", False),
        ("web-1", "call", b"status", False),
        ("web-1", "serve", b"orders.new", False),
        ("web", "call", b"echo", False),
        ("xweb-1", "call", b"echo", False),
        ("cron", "call", b"echo\n", False),
        ("cron", "call", b"echo2", False),
        ("orders-worker", "serve", b"orders.new", True),
        ("orders-worker", "call", b"orders.new", False),
        ("root", "manage", b"\xff\x00\n", True),
        ("root", "serve", b"echo", False),
        ("nobody", "call", b"status", False),
        ("", "call", b"status", False),
        (None, "call", b"status", True),
        (None, "call", b"echo", False),
        (None, "manage", b"status", False),
    ],
)
def test_who_may_do_what(user: str | None, verb: Verb, service: bytes, expected: bool) -> None:
    assert Rules(tomllib.loads(FILE)).rights_of(user).may(verb, service) is expected


@pytest.mark.parametrize(
    "text,place",
    [
        ("", 1),
        ("[allow]\ncall = ['x']\n", 1),
        ("x = 1\n", 1),
        ("[[allow]]\nwho = ['a']\ncall = ['x']\n\n[[deny]]\n", 5),
        ("[[allow]]\nwho = ['a']\n", 1),
        ("[[allow]]\ncall = ['x']\n", 1),
        ("[[allow]]\nwho = ['a']\ncall = ['x']\n[[allow]]\nwho = ['b']\nsevre = ['x']\n", 6),
        ("[[allow]]\nwho = 'a'\ncall = ['x']\n", 2),
        ("[[allow]]\nwho = ['a']\ncall = []\n", 3),
        ("[[allow]]\nwho = ['a']\ncall = [1]\n", 3),
        ("[[allow]]\nwho = ['a']\ncall = ['']\n", 3),
        ('[[allow]]\nwho = ["a\\nb"]\ncall = ["x"]\n', 2),
        ("[[allow]]\nanonymous = 1\ncall = ['x']\n", 2),
        ("allow = [1]\n", 1),
        ("[[allow]\n", 1),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, text: str, place: int) -> None:
    """Fault X1."""
    path = tmp_path / "rules.toml"
    path.write_text(text)
    with pytest.raises(BadConfig) as caught:
        load_rules(str(path))
    assert str(caught.value.message).startswith(f"{path}:{place}: ")
    assert caught.value.exit_code == 78


def test_a_misspelt_key_gets_a_suggestion() -> None:
    with pytest.raises(RuleError, match="did you mean serve"):
        Rules({"allow": [{"who": ["a"], "sevre": ["x"]}]})


def test_a_file_that_is_not_there_and_one_that_is_no_text(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="--rules"):
        load_rules(str(tmp_path / "none.toml"))
    (tmp_path / "octets").write_bytes(b"# \xff")
    with pytest.raises(BadConfig, match="UTF-8"):
        load_rules(str(tmp_path / "octets"))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["who", "call", "serve", "manage", "x"]) | st.text(), inner)
    ),
    max_leaves=12,
)


CONTENT = st.dictionaries(st.sampled_from(["allow", "x"]), VALUES, max_size=2)
TABLES = st.fixed_dictionaries({"allow": st.lists(VALUES, max_size=3)})


@given(CONTENT | TABLES)
def test_whatever_a_file_says_it_is_rules_or_a_rule_error(content: dict[str, object]) -> None:
    """Fault X1."""
    reason = ""
    try:
        answer = Rules(content).rights_of("a").may("call", b"x")
    except RuleError as error:
        answer, reason = False, error.reason
    assert answer in (True, False)
    assert reason.isprintable()


@given(st.text(max_size=60))
def test_whatever_a_file_is_it_loads_or_is_refused_in_one_printable_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Faults X1 and X3."""
    path = tmp_path_factory.mktemp("rules") / "rules.toml"
    path.write_text(text, encoding="utf-8", errors="replace", newline="")
    with pytest.raises(BadConfig) as caught:
        load_rules(str(path))
    assert caught.value.message.isprintable()


GLOBS = st.text(st.sampled_from("ab*?[]!-.|()\\$^{}+#"), min_size=1, max_size=12)


@given(GLOBS, st.binary(max_size=20))
def test_a_glob_is_a_glob_whatever_is_in_it_and_answers_for_any_name(glob: str, name: bytes) -> None:
    rights = Rules({"allow": [{"who": [glob], "call": [glob, glob], "serve": ["b" + glob]}]}).rights_of("a")
    assert all(rights.may(verb, name) in (True, False) for verb in VERBS)


def test_many_stars_take_no_time_worth_speaking_of() -> None:
    rights = Rules({"allow": [{"who": ["*" * 255], "call": ["*a" * 100]}]}).rights_of("u" * 255)
    assert not rights.may("call", b"a" * 99 + b"b" * 150)


@pytest.mark.parametrize(
    ("content", "table", "key"),
    [
        ({"deny": []}, -1, "deny"),
        ({}, -1, "allow"),
        ({"allow": []}, -1, "allow"),
        ({"allow": "web"}, -1, "allow"),
        ({"allow": [{"who": ["a"], "call": ["b"]}] * (TABLES_MAX + 1)}, -1, "allow"),
        ({"allow": [{"who": ["a"] * (GLOBS_MAX + 1), "call": ["b"]}]}, 0, "who"),
        ({"allow": [{"who": ["a"], "call": ["b"] * (GLOBS_MAX + 1)}]}, 0, "call"),
    ],
)
def test_an_error_says_where_it_is(content: dict[str, object], table: int, key: str) -> None:
    with pytest.raises(RuleError) as caught:
        Rules(content)
    assert (caught.value.table, caught.value.key) == (table, key)


def test_so_many_tables_and_globs_are_read() -> None:
    tables = [{"who": [str(number)], "call": ["b"]} for number in range(TABLES_MAX)]
    assert Rules({"allow": tables}).rights_of(str(TABLES_MAX - 1)).may("call", b"b")
    who = [str(number) for number in range(GLOBS_MAX)]
    assert Rules({"allow": [{"who": who, "call": who}]}).rights_of("7").may("call", str(GLOBS_MAX - 1).encode())
