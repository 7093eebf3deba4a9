"""mdp.worker.builtin_handlers: the built-in ones, and finding others by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from core.rpc.handlers import HandlerNotFound
from mdp.request import Request
from mdp.worker import builtin_handlers

if TYPE_CHECKING:
    from pathlib import Path


def request(*body: bytes) -> Request:
    return Request("service", list(body), b"", b"", None)


async def test_echo_returns_every_frame() -> None:
    assert await builtin_handlers.find_handler("echo")(request(b"a", b"", b"\xff")) == [b"a", b"", b"\xff"]


async def test_sleep_returns_the_body_afterwards() -> None:
    assert await builtin_handlers.find_handler("sleep")(request(b"0.001", b"x")) == [b"0.001", b"x"]


@pytest.mark.parametrize("body", [b"", b"soon", b"-1", b"nan", b"inf", b"3601", b"\xff"])
async def test_sleep_refuses_what_is_no_reasonable_time(body: bytes) -> None:
    with pytest.raises(ValueError):
        await builtin_handlers.sleep(request(body))


async def test_fail_fails_with_the_text_it_got() -> None:
    with pytest.raises(RuntimeError) as caught:
        await builtin_handlers.find_handler("fail")(request(b"bad \xff luck"))
    assert str(caught.value) == "bad \\xff luck"


async def test_handlers_are_imported_from_the_working_directory(workplace: Path) -> None:
    (workplace / "shop_handlers.py").write_text("class Shop:\n    @staticmethod\n    def sell(request):\n        return request.body\n")
    found = builtin_handlers.find_handler("shop_handlers:Shop.sell")
    assert found(request(b"one")) == [b"one"]
    assert builtin_handlers.import_app("shop_handlers").__name__ == "shop_handlers"


@pytest.mark.parametrize(
    "name,reason",
    [
        ("nonsense", "neither one of echo, sleep, fail nor package.module:function"),
        (":function", "neither one of"),
        ("module:", "neither one of"),
        ("no_such_package.module:function", "no module no_such_package"),
        ("json:no_such_function", "json has no no_such_function"),
        ("json:dumps.no.such", "json has no dumps.no.such"),
        ("json:__doc__", "cannot be called"),
        ("..relative:function", "relative"),
    ],
)
def test_a_missing_module_or_function_is_named(workplace: Path, name: str, reason: str) -> None:
    with pytest.raises(HandlerNotFound) as caught:
        builtin_handlers.find_handler(name)
    assert reason in caught.value.reason
    assert caught.value.name == name


def test_an_app_that_is_not_there(workplace: Path) -> None:
    with pytest.raises(HandlerNotFound):
        builtin_handlers.import_app("no_such_app")
    with pytest.raises(HandlerNotFound):
        builtin_handlers.import_app("")


def test_a_module_that_lacks_another_is_not_itself_absent(workplace: Path) -> None:
    (workplace / "half_handlers.py").write_text("import no_such_dependency\n")
    with pytest.raises(ModuleNotFoundError):
        builtin_handlers.find_handler("half_handlers:function")
