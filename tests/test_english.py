"""Words and forms that no text of the project uses.

Docstrings, comments, log and error texts, --help, pages, names of tests.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

pytestmark = [pytest.mark.xdist_group("architecture"), pytest.mark.usefixtures("syntax_trees")]

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("core", "mdp", "titanic", "bstar", "freelance", "pirate", "peering", "majordomo_toolkit")
TESTS = ("tests", "tests/core/zmtp", "tests/core/sockets", "tests/mdp/broker", "tests/mdp/wire", "tests/scenes")
TREES = (*PACKAGES, *TESTS, "benchmarks", "examples", "deploy")
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs", "specs", "benchmarks", "examples", "deploy")
FIRST_LINE_WORDS_MAX = 20
_IS = r"\b(?:is|are|was|were|be|been|being|gets?)"
_PROGRAM = (
    r"\b(?:client|worker|broker|peer|server|store|socket|program|process|session|handler|listener|queue|task|service|mirror|witness)s?"
)

# What is never written -> what is written instead.
FORBIDDEN = {
    r"\bwho(?:m|so)?ever\b": "every client that, any program that",
    rf"{_PROGRAM} who(?:m)?\b": "that, which",
    r"\b(?:one|those|he) who\b": "the client that, programs that",
    r"(?:^|[.:;] )who\b(?! may\b|:| =)": "a client that, the program that",
    r"\b(?:nobody|nothing|no one)\b[^.;:|]{0,60}\bany more\b": "no client … any longer",
    r"\b(?:he|his|him|himself|she|her|hers)\b": "it, its",
    r"\blet(?:s|ting)? (?:it |them )?go\b": "close, release, disconnect",
    rf"{_IS} told\b": "gets, receives, is notified",
    r"\bunder way\b": "in flight, running",
    r"\bmend(?:s|ed|ing)?\b": "fix, repair, correct",
    r"(?<!dead )(?<!dead-)(?<!capital )(?<!to the )(?<!one-)\bletters?\b(?!,? (?:and )?digits| of any)": "dead letter",
    r"\bby hand\b": "manually, or name the person",
    r"(?<!-)\bpatience\b(?!:)": "timeout, attempts",
    r"\bdial(?:l?er|l?ers|s|l?ed|l?ing)?\b": "connect, connection, reconnector",
    r"\bwaiting rooms?\b|\bseats?\b|\blanes?\b|\bglances?\b|\bstaff\b": "queue, registration, path, status",
    r"\bin hand\b": "in flight",
    rf"{_IS} cut\b(?! (?:into|in|at|off|from|short|to|by|out|and))": "disconnected, closed",
    r"\bcuts (?:a|the|its|every|each|any|that) (?:peer|client|worker|connection)": "disconnects, closes",
    r"\b(?:has|have|had|with|is|no|finds|found|without|making|make|for) room\b": "capacity, space",
    r"\bsen[dt]s? (?:\w+ )?away\b": "disconnect, refuse",
    r"\bturns? of the (?:event[ -])?loop\b|\bloop turns?\b|\b(?:in|within) (?:one|the same|that|this) turn\b": "event-loop iteration",
}
# Words in names of the code, between underscores or capitals, that have another name in the field.
NAMES = {
    r"(?:_|^)(?:room|desk|seats?|staff|lanes?|glance|gate|knock|waiting_room)(?:_|$)": "capacity, registration, status …",
    r"(?:_|^)(?:in_hand|send_away|patience)(?:_|$)": "in flight, disconnect, timeout",
    r"(?:_|^)(?:dial|dialer|dialler)(?:_|$)": "connect, reconnector",
    r"^(?:on_)?letters?$": "dead letter",
}
# Public names, and those of others.
NAMES_KEPT = frozenset(("patience",))
# In the product and its pages; names of tests may be shorter.
PEOPLE = [(re.compile(r"(?<!//)\b(?:nobody|somebody)\b(?! can| after)", re.IGNORECASE), "no client, no peer, any program")]
# Text for users speaks of bytes; only the frames of an RFC have octets.
OCTET = re.compile(r"\boctets?\b", re.IGNORECASE)
RULES = [(re.compile(pattern, re.IGNORECASE), better) for pattern, better in FORBIDDEN.items()]
# `tokenize` takes six times as long; `test_comments_and_names_are_those_of_the_tokenizer` holds them against each other.
STRING_OR_COMMENT = re.compile(
    r'''"""(?:[^"\\]|\\.|"(?!""))*"""|\'{3}(?:[^'\\]|\\.|'(?!''))*\'{3}|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|#[^\n]*''', re.DOTALL
)
NAME = re.compile(r"\b[^\W\d]\w*")
QUESTION = re.compile(r"(?:What|Who|How|Which)\b")


class Text(NamedTuple):
    """A piece of text: where, of what kind (docstring, comment, string, page, name), and its words."""

    place: str
    kind: str
    words: str


@cache
def texts_of_code(path: Path) -> tuple[Text, ...]:
    """Return docstrings, comments, strings of several words, and names of tests."""
    place = path.relative_to(ROOT).as_posix()
    source = path.read_text(encoding="utf-8")
    found, docstrings = [], set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if (text := ast.get_docstring(node)) is not None:
                docstrings.add(id(node.body[0].value))  # type: ignore[attr-defined]
                found.append(Text(f"{place}:{node.body[0].lineno}", "docstring", text))
            if not isinstance(node, ast.Module) and node.name.startswith("test_"):
                found.append(Text(f"{place}:{node.lineno}", "name", node.name.replace("_", " ")))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings and node.value.count(" ") >= 2:
            found.append(Text(f"{place}:{node.lineno}", "string", node.value))
    found += [Text(f"{place}:{line}", "comment", comment) for line, comment in comments_of(source)]
    return tuple(found)


def comments_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield each comment and its line."""
    line, at = 1, 0
    for match in STRING_OR_COMMENT.finditer(source):
        if match[0][0] == "#":
            line += source.count("\n", at, match.start())
            at = match.start()
            yield line, match[0]


def names_of(source: str) -> set[str]:
    """Return the names and keywords in the code itself."""
    return set(NAME.findall(STRING_OR_COMMENT.sub(" ' ", source)))


@cache
def texts_of_page(path: Path) -> tuple[Text, ...]:
    """Return the prose of a page, by paragraph or table row."""
    place = path.relative_to(ROOT).as_posix()
    blank = lambda match: "\n" * match[0].count("\n")  # noqa: E731
    text = re.sub(r"^```.*?^```$", blank, path.read_text(encoding="utf-8"), flags=re.M | re.S)
    found: list[Text] = []
    begun, lines = 0, list[str]()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.startswith("|") or re.match(r" *(?:[-*]|\d+\.) ", line) or not line.strip():
            if lines:
                found.append(Text(f"{place}:{begun}", "page", " ".join(lines)))
            lines = []
            if line.startswith("|"):
                found.append(Text(f"{place}:{number}", "page", line))
            elif line.strip():
                begun, lines = number, [line.strip()]
        else:
            begun = begun if lines else number
            lines.append(line.strip())
    return tuple(found)


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def pages(*names: str) -> list[Path]:
    return sorted(page for name in names for page in ([ROOT / name] if name.endswith(".md") else (ROOT / name).rglob("*.md")))


def plain(text: str) -> str:
    """Return a text without code and quotations: what stands between back-ticks, and the words of others between quotation marks."""
    return re.sub(r"`+[^`]*`+|[“‘][^”’]*[”’]", "`x`", re.sub(r"\s+", " ", text))


def forbidden(texts: Iterator[Text] | list[Text], *more: tuple[re.Pattern[str], str]) -> list[str]:
    return [
        f"{text.place}: “{found[0]}” ({better})"
        for text in texts
        for words in [plain(text.words)]
        for pattern, better in (*RULES, *more)
        for found in pattern.finditer(words)
    ]


def first_lines(texts: Iterator[Text] | list[Text]) -> list[str]:
    """Return docstrings that begin with a question or with a line of too many words."""
    heads = [(text.place, text.words.partition("\n\n")[0].split("\n")[0]) for text in texts if text.kind == "docstring"]
    return [f"{place}: {line}" for place, line in heads if QUESTION.match(line) or len(line.split()) > FIRST_LINE_WORDS_MAX]


@cache
def texts_of_tree(tree: str) -> tuple[Text, ...]:
    inner = tuple(ROOT / other for other in TREES if other.startswith(f"{tree}/"))
    files = (path for path in python_files(tree) if not any(other in path.parents for other in inner))
    found = (text for path in files for text in texts_of_code(path))
    return tuple(text for text in found if tree in PACKAGES or text.kind != "string")  # strings of tests are data


@pytest.mark.parametrize("tree", TREES)
def test_code_has_no_forbidden_words(tree: str) -> None:
    found = forbidden(list(texts_of_tree(tree)), *(PEOPLE if tree in PACKAGES else ()))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("package", PACKAGES)
def test_names_in_the_code_are_words_of_the_field(package: str) -> None:
    rules = [(re.compile(pattern), better) for pattern, better in NAMES.items()]
    found = {
        f"{path.relative_to(ROOT)}: {name} ({better})"
        for path in python_files(package)
        for name in names_of(path.read_text(encoding="utf-8")) - NAMES_KEPT
        for pattern, better in rules
        if pattern.search(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().strip("_"))
    }
    assert found == set()


def outside_strings(tokens: Iterable[tokenize.TokenInfo]) -> Iterator[tokenize.TokenInfo]:
    """Yield the tokens that are not in an f-string, which is one token before Python 3.12."""
    depth = 0
    for token in tokens:
        name = tokenize.tok_name[token.type]
        depth += name == "FSTRING_START"
        if not depth:
            yield token
        depth -= name == "FSTRING_END"


@pytest.mark.parametrize("tree", ["mdp/broker", "tests/mdp/broker", "tests/scenes"])
def test_comments_and_names_are_those_of_the_tokenizer(tree: str) -> None:
    for path in python_files(tree):
        source = path.read_text(encoding="utf-8")
        tokens = [*outside_strings(tokenize.generate_tokens(io.StringIO(source).readline))]
        assert [*comments_of(source)] == [(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT]
        prefixes = {"b", "f", "r", "rb", "br", "fr", "rf", "B", "F", "R"}
        assert names_of(source) - prefixes == {token.string for token in tokens if token.type == tokenize.NAME} - prefixes
    assert [*comments_of("x = '#' # a\ny = '''#\n\\'''# b\n''' # c")] == [(1, "# a"), (4, "# c")]


@pytest.mark.parametrize("tree", TREES)
def test_docstrings_begin_with_a_short_line_and_no_question(tree: str) -> None:
    found = first_lines(list(texts_of_tree(tree)))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", PAGES)
def test_pages_have_no_forbidden_words(name: str) -> None:
    assert forbidden([text for page in pages(name) for text in texts_of_page(page)], *PEOPLE) == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "docs"])
def test_pages_for_users_speak_of_bytes(name: str) -> None:
    assert [text.place for page in pages(name) for text in texts_of_page(page) if OCTET.search(plain(text.words))] == []


def test_messages_speak_of_bytes() -> None:
    """Log lines and error texts; what Python shows of a help text is in docs/."""
    strings = [text for package in PACKAGES for text in texts_of_tree(package) if text.kind == "string"]
    found = [text.place for text in strings if OCTET.search(plain(text.words))]
    assert found == []


def test_comments_of_other_files_have_no_forbidden_words() -> None:
    """Units, configuration, container and build files."""
    files = [path for path in (ROOT / "deploy").rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}]
    comments = [
        Text(f"{path.relative_to(ROOT)}:{number}", "comment", line.partition("#")[2])
        for path in [*files, ROOT / "Makefile", ROOT / "pyproject.toml"]
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    ]
    assert forbidden(comments) == []
