"""Apps named on a command line: `package.module:app`, or a module with an `mdp.App` called `app`, or with decorated handlers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.rpc.handlers import HandlerNotFound
from mdp.app.app import App
from mdp.worker.builtin_handlers import import_app

if TYPE_CHECKING:
    from types import ModuleType

_USUAL_NAME = "app"


def find_app(name: str) -> App | ModuleType:
    """Return the app of this name, or the module if there is none called `app` in it; raises HandlerNotFound."""
    module_name, colon, path = name.partition(":")
    module = import_app(module_name)
    found = getattr(module, path if colon else _USUAL_NAME, None)
    if isinstance(found, App):
        return found
    if colon:
        raise HandlerNotFound(name, f"{module_name} has no mdp.App called {path}")
    return module
