"""Pages opened as files in a browser fit a telephone, and the search needs neither a server nor a network."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.web.browser import page_at

if TYPE_CHECKING:
    from pathlib import Path

# The pages are built first, which takes minutes on a machine that is busy.
pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("site"), pytest.mark.timeout(1000)]
LOADED = "document.readyState === 'complete' && !!document.querySelector('.md-search__input')"
SEARCH = """(() => {
  const field = document.querySelector('.md-search__input'), toggle = document.querySelector('#__search');
  if (!toggle.checked) toggle.click();
  field.value = 'witness';
  for (const kind of [new Event('input', {bubbles: true}), new KeyboardEvent('keyup', {bubbles: true})]) field.dispatchEvent(kind);
  return [...document.querySelectorAll('.md-search-result__item')].map(item => item.innerText).join(' ');
})()"""


async def test_search_and_width_of_pages_that_are_opened_as_files(site: Path, tmp_path: Path) -> None:
    async with page_at((site / "reference" / "mdp.html").as_uri(), tmp_path) as page:
        await page.until(LOADED, "document.title")
        assert "Binary Star" in await page.until(SEARCH, "document.title")
        for name in ("guarantees", "concepts", "troubleshooting", "reference/core"):
            await page.width(400, 800)
            await page.go((site / f"{name}.html").as_uri())
            await page.until(LOADED, "document.title")
            assert await page.ask("document.documentElement.scrollWidth") == 400, name
        assert page.complaints == []
