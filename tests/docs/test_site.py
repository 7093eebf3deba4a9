"""The documentation site has all pages, no broken links, and programs that print what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
EVIDENCE = re.findall(r"`(tests/[\w/]+\.py)`", (DOCS / "guarantees.md").read_text(encoding="utf-8"))
PACKAGES = ("core", "mdp", "titanic", "bstar", "freelance", "pirate", "peering")


class _Links(HTMLParser):
    """Collects the addresses a page refers to and the ids it has."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            leads_elsewhere = tag == "a" and value is not None and value.startswith(("https://", "http://127.0.0.1:"))
            if name in ("href", "src") and value and not leads_elsewhere:
                self.addresses.append(value)
            elif name == "id" and value:
                self.ids.add(value)


def broken(site: Path) -> list[str]:
    """Return every address of the site that leads nowhere, and what it loads from another host."""
    pages = {path: _Links(path) for path in site.rglob("*.html") if path.name != "404.html"}  # its links are those of a server
    found = []
    for path, page in pages.items():
        for address in page.addresses:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:  # something that the page would load from another host, or a link without encryption
                found.append(f"{path.name}: {address}")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.exists() or (parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids):
                found.append(f"{path.relative_to(site)}: {address}")
    return found


@pytest.mark.timeout(1000)  # the pages are built first
@pytest.mark.xdist_group("site")
def test_the_site_is_complete_and_its_links_lead_somewhere(site: Path) -> None:
    assert broken(site) == []
    for package in PACKAGES:
        page = (site / "reference" / f"{package}.html").read_text(encoding="utf-8")
        classes = set(re.findall(rf'<h[23] id="{package}\.(\w+)"', page))
        assert {"core": {"Socket", "Context"}, "peering": {"Broker"}, "pirate": {"Client", "Queue"}}.get(package, {"Client"}) <= classes
    assert "credit" in (site / "search" / "search_index.js").read_text(encoding="utf-8")


def test_pictures_are_those_of_their_source() -> None:
    spec = spec_from_file_location("draw", DOCS / "pictures" / "draw.py")
    assert spec is not None
    assert spec.loader is not None
    draw: Any = module_from_spec(spec)
    spec.loader.exec_module(draw)
    wanted = draw.pictures()
    assert {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "pictures").glob("*.svg")} == wanted
    shown = re.findall(r"pictures/([\w-]+\.svg)\)", (DOCS / "concepts.md").read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(wanted)


@pytest.mark.parametrize("name", sorted(set(EVIDENCE)))
def test_the_evidence_of_a_guarantee_exists(name: str) -> None:
    assert (ROOT / name).is_file()


def test_the_program_of_the_first_page_prints_what_it_says() -> None:
    page = (DOCS / "index.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    said = re.search(r"asyncio\.run\(main\(\)\)  # (.*)", program)
    assert said is not None
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == (said[1], "")


def whole(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a cell's outputs with pieces of one stream put together: a kernel sends them as it likes."""
    found: list[dict[str, Any]] = []
    for output in outputs:
        stream = output["output_type"] == "stream"
        if stream and found and (found[-1]["output_type"], found[-1].get("name")) == ("stream", output["name"]):
            found[-1] = {**found[-1], "text": found[-1]["text"] + output["text"]}
        else:
            found.append({**output})
    return found


def test_the_notebook_prints_what_it_says_in_a_kernel() -> None:
    import nbclient  # here: every test process collects this module, and they take half a second
    import nbformat

    notebook = nbformat.read(DOCS / "notebook.ipynb", as_version=4)  # type: ignore[no-untyped-call]  # nbformat has no annotations here
    said = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    nbclient.NotebookClient(notebook, timeout=100, resources={"metadata": {"path": str(ROOT)}}).execute()
    printed = [cell.outputs for cell in notebook.cells if cell.cell_type == "code"]
    assert [whole(outputs) for outputs in printed] == [whole(outputs) for outputs in said]
