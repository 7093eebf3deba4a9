"""deploy/: the installation is started for real, parts are killed under a steady client.

Its files say what the programs understand.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, requires
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


@pytest.mark.long
@pytest.mark.timeout(240)
def test_parts_are_killed_and_every_request_of_a_steady_client_is_answered() -> None:
    victims = ("broker-a", "titanic", "worker-1", "witness")
    done = run_installation(*(word for victim in victims for word in ("--only", victim)))
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^asked: \d+ answered, 0 wrong, 0 failed", done.stdout, re.MULTILINE)
    assert re.search(r"^stored: \d+ answered, 0 wrong, 0 failed", done.stdout, re.MULTILINE)


@pytest.mark.long
@pytest.mark.timeout(240)
def test_an_upgrade_one_part_after_another_fails_no_request() -> None:
    done = run_installation("--upgrade")
    assert done.returncode == 0, done.stdout + done.stderr
    first, *brokers, mirror, store, one, two = re.findall(r"^(\S+) restarted", done.stdout, re.MULTILINE)
    assert (first, {*brokers}, mirror, store) == ("witness", {"broker-a", "broker-b"}, "mirror", "titanic")
    assert {one, two} == {"worker-1", "worker-2"}
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


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_a_unit_waits_for_ready_watches_the_loop_and_never_gives_up(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    service = lines.index("[Service]")
    assert "Type=notify" in lines[service:]
    assert any(line.startswith("WatchdogSec=") for line in lines[service:])
    assert "Restart=always" in lines[service:]
    # A second between two starts meets the limit of five starts in ten seconds, after which systemd lets a unit lie.
    assert "StartLimitIntervalSec=0" in lines[:service]
    assert "RestartPreventExitStatus=2 78" in lines[service:]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze, which is there where systemd is")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_has_nothing_to_say_against_a_unit(path: Path, tmp_path: Path) -> None:
    unit = tmp_path / path.name.replace("@.", "@a.")
    unit.write_text(re.sub(r"/opt/majordomo/bin/\w+", sys.executable, path.read_text(encoding="utf-8")))
    said = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    # Of other units of the machine, which it looks at too, nobody wants to know.
    assert unit.name not in said.stderr
    assert said.returncode == 0


def needed_for_a_wheel() -> set[str]:
    """Return what the build of the wheel reads.

    A step that forgets one of them fails, or makes an image without it.
    """
    whole = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = whole["tool"]["hatch"]["build"]["targets"]["wheel"]
    data = {str(Path(name).parent) for name in wheel["force-include"]}
    return {"pyproject.toml", whole["project"]["readme"], *whole["project"]["license-files"], *wheel["packages"], *data}


def test_the_image_is_made_of_what_there_is_and_its_command_is_one_of_ours() -> None:
    lines = re.sub(r"\\\n\s*", "", (DEPLOY / "Containerfile").read_text(encoding="utf-8")).splitlines()
    steps = [line.partition(" ")[::2] for line in lines if line and not line.startswith("#")]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    said = "\n".join(lines)
    ((base,),) = [re.findall(r"^BASE=\S+/python:(\d+\.\d+)-", rest) for word, rest in steps if word == "ARG"]
    assert {rest.partition(" ")[0] for word, rest in steps if word == "FROM"} == {"${BASE}"}
    assert tuple(map(int, base.split("."))) >= tuple(map(int, project["requires-python"].removeprefix(">=").split(".")))
    assert set(re.findall(r"/src\[([\w,]+)\]", said)[0].split(",")) <= set(project["optional-dependencies"])
    copied = {name for word, rest in steps if word == "COPY" and not rest.startswith("--from") for name in rest.split()[:-1]}
    assert copied >= needed_for_a_wheel()
    # It does not run as root, and everything it writes to is its own.
    ((user,),) = [re.findall(r"^(\w+)$", rest) for word, rest in steps if word == "USER"]
    assert re.search(rf"useradd .*\b{user}\b", said)
    volumes = json.loads(next(rest for word, rest in steps if word == "VOLUME"))
    (owned,) = re.findall(rf"install -d -o {user} -g {user} -m 0700 ([^&\n]+)", said)
    assert set(volumes) <= set(owned.split())
    program, *arguments = json.loads(next(rest for word, rest in steps if word == "CMD"))
    assert program in project["scripts"]
    shown = subprocess.run(
        [sys.executable, "-m", program, *arguments, "--show-config"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
    )
    assert shown.returncode == 0, shown.stderr


def pinned() -> dict[str, str]:
    lines = (DEPLOY / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(re.fullmatch(r"([\w-]+)==([\d.]+)", line).groups() for line in lines if not line.startswith("#"))  # type: ignore[union-attr, misc]


def test_whatever_is_installed_in_the_image_has_its_version_named() -> None:
    """With all that the needed packages need.

    The versions are those the tests run with, as far as these are there.
    """
    pins = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pinned().items()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted, seen = [*project["dependencies"], *project["optional-dependencies"]["web"]], set()
    while wanted:
        need = wanted.pop()
        name = re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", need)[0]).lower()  # type: ignore[index]
        if name in seen or "extra ==" in need or name == "async-timeout":  # which is for Python 3.10
            continue
        seen.add(name)
        assert name in pins, need
        least = re.search(r">=([\d.]+)", need)
        assert least is None or tuple(map(int, pins[name].split("."))) >= tuple(map(int, least[1].split("."))), need
        with suppress(PackageNotFoundError):
            wanted += requires(name) or []
    assert seen <= set(pins)


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
