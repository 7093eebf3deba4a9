"""deploy/: the installation is started for real, parts are killed under a steady client; its files say what the programs understand."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PROGRAMS = {"broker": "mdp", "worker": "mdp", "witness": "bstar", "serve": "titanic", "mirror": "titanic"}
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
CONFIGS = [name for name in sorted((DEPLOY / "example").glob("*.toml")) if name.name != "rules.toml"]


def run_installation(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(DEPLOY / "installation.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})


@pytest.mark.timeout(240)
def test_parts_are_killed_and_every_request_of_a_steady_client_is_answered() -> None:
    victims = ("broker-a", "titanic", "worker-1", "witness")
    done = run_installation(*(word for victim in victims for word in ("--only", victim)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^asked: \d+ answered, 0 wrong, 0 failed", done.stdout, re.MULTILINE)
    assert re.search(r"^stored: \d+ answered, 0 wrong, 0 failed", done.stdout, re.MULTILINE)


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_every_part_is_killed_ten_times() -> None:
    done = run_installation("--rounds", "10")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_key_of_the_example_is_one_of_its_command(path: Path) -> None:
    ((command, table),) = tomllib.loads(path.read_text(encoding="utf-8")).items()
    shown = subprocess.run(
        [sys.executable, "-m", PROGRAMS[command], command, "--config", str(path), "--show-config"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert shown.returncode == 0, shown.stderr
    assert {key for key in table if f"# file {path}" in shown.stdout} == set(table)
    for key in table:
        assert re.search(rf"^{key} = .* # file {re.escape(str(path))}:\d+$", shown.stdout, re.MULTILINE), key


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_every_unit_is_hardened_and_starts_a_command_of_ours(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    (program, command, config) = re.findall(r"^ExecStart=/opt/majordomo/bin/(\w+) (\w+) --config \S*?/([\w%.-]+)$", text, re.MULTILINE)[0]
    assert PROGRAMS[command] == program
    assert config.replace("%i", "a") in {*(name.name for name in CONFIGS)}
    for line in ("NoNewPrivileges=yes", "ProtectSystem=strict", "PrivateTmp=yes", "MemoryDenyWriteExecute=yes", "CapabilityBoundingSet="):
        assert re.search(rf"^{line}$", text, re.MULTILINE), line
    assert "ExecReload=/bin/kill -HUP $MAINPID" in text


def test_the_page_names_files_units_and_flags_that_are_there() -> None:
    page = (ROOT / "docs" / "deploying.md").read_text(encoding="utf-8")
    for name in re.findall(r"`([\w-]+\.(?:toml|yml))`", page):
        assert (DEPLOY / "example" / name).is_file(), name
    units = {path.name.removesuffix(".service").removesuffix("@") for path in UNITS}
    named = {
        word.partition("@")[0] for line in re.findall(r"^\$ systemctl [^#\n]*--now ([^#\n]*)", page, re.MULTILINE) for word in line.split()
    }
    assert named
    assert named <= units
    for program, command, rest in re.findall(r"\$ (?:sudo -u \w+ )?(mdp|bstar|titanic) (\w+) ([^#\n]*)", page):
        told = subprocess.run(
            [sys.executable, "-m", program, command, "--help"],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env={"PYTHONPATH": str(ROOT)},
        )
        for flag in re.findall(r"--[\w-]+", rest):
            assert flag in told.stdout, f"{program} {command} {flag}"
