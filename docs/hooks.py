"""Hooks of the documentation site: pages that stand outside of docs/ and the notebook are part of it, and links to them work."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
# Pages of the repository that the site shows under the same path.
PAGES = ("CHANGELOG.md", "benchmarks/README.md", "examples/guide/README.md", *(f"specs/{path.name}" for path in ROOT.glob("specs/*.md")))
_OUTSIDE = re.compile(r"\]\(\.\./([^)#]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that stand outside of docs/, and the notebook as a page."""
    for name in PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text(encoding="utf-8")))
    files.append(File.generated(config, "notebook.md", content=notebook_page(json.loads(NOTEBOOK.read_text(encoding="utf-8")))))
    return files


def notebook_page(notebook: dict[str, Any]) -> str:
    """Return a notebook as a page: its texts, its code, and what the code printed."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        printed = "".join("".join(output.get("text", "")) for output in cell["outputs"])
        parts.append(f"```python\n{source}\n```")
        parts += [f"```text\n{printed}```"] if printed else []
    return "\n\n".join([*parts, ""])


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave docs/ to the page of the site; what is no page stays as text."""
    if page.file.src_uri in PAGES:
        # Their links are relative to the repository; the site has the pages of docs/ at its root.
        return re.sub(r"\[([^\]]+)\]\((?!https?:|#)[^)]*\)", r"\1", markdown)

    def inside(found: re.Match[str]) -> str:
        return f"]({found[1]}" if found[1] in PAGES else "](index.md"

    return _OUTSIDE.sub(inside, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Take the script that searches pages opened as files from the site, not from another host."""
    root = "../" * page.file.dest_uri.count("/")
    return output.replace("https://unpkg.com/iframe-worker/shim", f"{root}file-search.js")
