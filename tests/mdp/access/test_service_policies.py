"""mdp.access.service_policies: which table counts for a service, and files that are refused with their line."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING

import pytest

from core.daemon.exit_codes import BadConfig
from mdp.access.rules_file import load_policies
from mdp.access.service_policies import OwnPolicies, ServicePolicies
from mdp.wire.policies import Rate, Retry

if TYPE_CHECKING:
    from pathlib import Path

FILE = """\
[[policy]]
services = ["pay"]
rate = {per_s = 5}
retry = false

[[policy]]
services = ["pay", "mail.*"]
rate = {per_s = 50, burst = 10}
retry = {attempts = 4}

[[policy]]
services = ["*"]
priority_max = "normal"
"""


@pytest.mark.parametrize(
    "service,expected",
    [
        (b"pay", OwnPolicies(Rate(5), False, 0)),
        (b"mail.out", OwnPolicies(Rate(50, burst=10), Retry(attempts=4), 0)),
        (b"mail", OwnPolicies(priority_max=0)),
        (b"\xff", OwnPolicies(priority_max=0)),
    ],
)
def test_of_each_key_the_first_table_counts(service: bytes, expected: OwnPolicies) -> None:
    """POL-04."""
    assert ServicePolicies(tomllib.loads(FILE)).of(service) == expected


def test_nothing_is_said_about_other_services() -> None:
    assert ServicePolicies({"policy": [{"services": ["pay"], "rate": False}]}).of(b"payment") is None


@pytest.mark.parametrize(
    "text,line,words",
    [
        ("", 1, "no table [[policy]]"),
        ("[[policies]]\nservices = ['x']\n", 1, "'policies' is not a key of policies"),
        ("policy = 1\n", 1, "no table [[policy]]"),
        ("policy = [1]\n", 1, "[[policy]] is a table"),
        ("[[policy]]\nrate = {per_s = 1}\n", 1, "which services?"),
        ("[[policy]]\nservices = []\n", 2, "services is a list of texts"),
        ("[[policy]]\nservices = ['x']\n", 1, "what is their policy?"),
        ("[[policy]]\nservices = ['x']\n\nrates = {per_s = 1}\n", 4, "no key 'rates'; did you mean rate?"),
        ("[[policy]]\nservices = ['x']\nrate = {persec = 1}\n", 3, "no key 'persec' in rate; did you mean per_s?"),
        ("[[policy]]\nservices = ['x']\nrate = {burst = 5}\n", 3, "how many a second?"),
        ("[[policy]]\nservices = ['x']\nrate = 5\n", 3, "rate is false, or a table of per_s, burst"),
        ("[[policy]]\nservices = ['x']\nrate = true\n", 3, "rate is false, or a table of per_s, burst"),
        ("[[policy]]\nservices = ['x']\nrate = {per_s = '5'}\n", 3, "rate: per_s is not a number"),
        ("[[policy]]\nservices = ['x']\nrate = {per_s = 0}\n", 3, "rate of 0.0 requests a second"),
        ("[[policy]]\nservices = ['x']\n[policy.retry]\nattempts = 1\n", 3, "1 attempts are not 2 to 100"),
        (
            "[[policy]]\nservices = ['x']\nrate = false\n[[policy]]\nservices = ['y']\nretry = {attempts = 2.5}\n",
            6,
            "attempts is not a whole number",
        ),
        ("[[policy]]\nservices = ['x']\npriority_max = 'low'\n", 3, "priority_max is one of high, normal"),
        ("[[policy]]\nservices = ['x'\n", 3, "not TOML"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    """POL-04."""
    file = tmp_path / "policies.toml"
    file.write_text(text)
    with pytest.raises(BadConfig) as refused:
        load_policies(str(file))
    assert f"policies.toml:{line}: " in str(refused.value)
    assert words in str(refused.value)


def test_a_file_that_is_not_there_is_named_with_its_flag(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="--policies"):
        load_policies(str(tmp_path / "none"))
