"""mdp.commands.worker_daemon: apps by name, for `mdp worker --app`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

import mdp
from core.rpc.handlers import HandlerNotFound
from mdp.commands.worker_daemon import find_app

if TYPE_CHECKING:
    from pathlib import Path

SHOP = """
import mdp

app = mdp.App()
other = mdp.App()


@app.service("total")
async def total(price: float) -> float:
    return price


@other.service("items")
async def items() -> int:
    return 3
"""


def test_by_module_by_name_and_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_with_apps.py").write_text(SHOP)
    (tmp_path / "shop_of_handlers.py").write_text("app = 5\n")
    monkeypatch.syspath_prepend(tmp_path)
    usual, named = find_app("shop_with_apps"), find_app("shop_with_apps:other")
    assert isinstance(usual, mdp.App)
    assert isinstance(named, mdp.App)
    assert (usual.services, named.services) == (["total"], ["items"])
    assert find_app("shop_of_handlers") is sys.modules["shop_of_handlers"]
    for wrong in ("shop_with_apps:none", "shop_of_handlers:app", "no_such_shop:app"):
        with pytest.raises(HandlerNotFound):
            find_app(wrong)
