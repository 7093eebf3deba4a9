"""mdp.testing as a pytest plugin, and the page of the documentation about tests, as users run them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
PLAIN, VIRTUAL, CONFTEST, SHOP, TEST_SHOP, WITHOUT_PLUGIN = BLOCKS
OPTIONS = ("-q", "-p", "no:cacheprovider", "-W", "error", "-o", "asyncio_default_fixture_loop_scope=function")


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder, as a user of the installed packages would."""
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def run_pytest(folder: Path, *options: str, mode: str = "auto") -> str:
    ended = run(folder, "-m", "pytest", *OPTIONS, "-o", f"asyncio_mode={mode}", *options)
    return ended.stdout + ended.stderr


def test_the_page_runs_without_a_test_framework(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(PLAIN, encoding="utf-8")
    ended = run(tmp_path, "plain.py")
    assert (ended.stdout, ended.stderr) == ("[b'x', b'x']\n", "")


def test_the_page_runs_in_virtual_time(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text(VIRTUAL, encoding="utf-8")
    ended = run(tmp_path, "plain.py")
    assert ended.stderr == "workers removed that were silent\n"
    assert f"It prints `{ended.stdout.strip()}`" in PAGE


def test_the_page_runs_with_the_plugin(tmp_path: Path) -> None:
    for name, text in (("conftest.py", CONFTEST), ("shop.py", SHOP), ("test_shop.py", TEST_SHOP)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    said = run_pytest(tmp_path)
    assert "3 passed" in said, said


def test_the_page_runs_with_a_fixture_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "test_shop.py").write_text(WITHOUT_PLUGIN, encoding="utf-8")
    said = run_pytest(tmp_path)
    assert "3 passed" in said, said


STRICT = """
import asyncio
import pytest
import mdp

@mdp.service("double")
async def double(request: mdp.Request) -> list[bytes]:
    return [*request.body, *request.body]

@pytest.fixture
def mdp_app():
    return double

@pytest.fixture
def mdp_limits():
    return {"manage": True, "heartbeat_ms": 100}

@pytest.mark.asyncio
@pytest.mark.virtual_time(seed=3, limit_s=50)
async def test_limits_and_marker(mdp_broker, mdp_client):
    assert await mdp_client.mmi("disable", "double") == "200"
    assert type(asyncio.get_running_loop()).__name__ == "VirtualLoop"
    with pytest.raises(mdp.Timeout):
        await mdp_client.request("missing", b"x", wait=True, timeout=10.0, attempts=1)

@pytest.mark.asyncio
async def test_real_time(mdp_client):
    assert type(asyncio.get_running_loop()).__name__ != "VirtualLoop"
    assert await mdp_client.request("double", b"x") == [b"x", b"x"]

@pytest.mark.asyncio
@pytest.mark.virtual_time(limit_s=50)
async def test_it_never_ends(mdp_client):
    await asyncio.Event().wait()
"""


@pytest.mark.long
def test_limits_a_single_handler_and_the_marker_in_strict_mode(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "test_strict.py").write_text(STRICT, encoding="utf-8")
    said = run_pytest(tmp_path, "--strict-markers", mode="strict")
    assert "1 failed, 2 passed" in said, said
    assert "not ended within 50 s of virtual time" in said, said
    markers = run(tmp_path, "-m", "pytest", "--markers", "-p", "mdp.testing").stdout
    assert "@pytest.mark.virtual_time(seed=0, limit_s=10000)" in markers


def test_without_the_hook_of_pytest_asyncio_tests_in_virtual_time_are_refused(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    (tmp_path / "test_strict.py").write_text(STRICT, encoding="utf-8")
    ended = run(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio")
    said = ended.stdout + ended.stderr
    assert "virtual_time needs pytest-asyncio 1.4 or later; fix: pip install 'majordomo-toolkit[testing]'" in said, said


@pytest.mark.parametrize("module", ["mdp.testing", "mdp.testing.local_broker", "mdp.testing.virtual_time"])
def test_the_helpers_need_no_pytest(module: str, tmp_path: Path) -> None:
    ended = run(tmp_path, "-c", f"import sys; sys.modules['pytest'] = None; import {module}; print('loaded')")
    assert ended.stdout == "loaded\n", ended.stderr
