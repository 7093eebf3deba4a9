"""Names of a package that are loaded on first use, so that a client does not import the broker."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["lazy_names"]


def lazy_names(package: str, modules: Mapping[str, Iterable[str]], *, extra: str = "") -> Callable[[str], Any]:
    """Return the `__getattr__` of a package, from modules and the names in them; the last one of a name counts."""
    homes = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            value = getattr(import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            if not extra or (error.name or "").startswith(package):
                raise
            fix = f"pip install 'majordomo-toolkit[{extra}]'"
            raise ModuleNotFoundError(f"{package}.{name} needs {error.name}, which is not installed; fix: {fix}", name=error.name) from None
        vars(sys.modules[package])[name] = value
        return value

    return load
