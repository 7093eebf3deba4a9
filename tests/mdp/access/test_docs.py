"""docs/security.md: commands run unchanged in one shell session and print the documented output."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.scenes.docs_page import Page

if TYPE_CHECKING:
    from pathlib import Path

page = Page("security.md")


@pytest.mark.timeout(180)  # many processes, on a machine that may be busy
def test_the_page_is_true(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(page.blocks("toml")[0])
    where = "ipc://default.sock"
    environment = {"MDP_BIND": where, "MDP_BROKER": where, "MDP_WORKER_LOG_LEVEL": "error", "MDP_TIMEOUT": "20"}
    page.run(tmp_path, "mdp", "zmtp", numbered_jobs=True, environment=environment)
