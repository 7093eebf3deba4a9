"""Build hook: compiles the hot modules into the wheel where that is possible; else the wheel has the same modules as source only."""

from __future__ import annotations

import sys
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

if TYPE_CHECKING:
    from types import ModuleType


class CompiledModules(BuildHookInterface):
    """Adds the compiled modules to a wheel; an editable installation has none, because they would not follow their source."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        """Return what the build needs: nothing where there is no C compiler."""
        extension = self._extension()
        return [] if extension.impediment(tools=False) else list(extension.REQUIREMENTS)

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and add the files to the wheel."""
        if self.target_name != "wheel" or version == "editable":
            return
        extension = self._extension()
        reason = extension.impediment()
        self._compiled = tempfile.TemporaryDirectory()
        target = Path(self._compiled.name)
        files: list[Path] = []
        if not reason:
            try:
                files = extension.compile_into(Path(self.root), target)
            except extension.CompilationFailed as error:
                print(error, file=sys.stderr)
                reason = "the compilation failed"
        if reason:
            print(f"majordomo-toolkit is installed without its compiled modules, and is slower: {reason}", file=sys.stderr)
            return
        build_data["force_include"].update({str(target / file): file.as_posix() for file in files})
        build_data["pure_python"] = False
        build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the compiled modules: they are in the wheel."""
        if hasattr(self, "_compiled"):
            self._compiled.cleanup()

    def _extension(self) -> ModuleType:
        """Load `majordomo_toolkit.extension` from its file: the package itself is not installed yet."""
        spec = spec_from_file_location("majordomo_extension", Path(self.root, "majordomo_toolkit", "extension.py"))
        if spec is None or spec.loader is None:
            raise FileNotFoundError("majordomo_toolkit/extension.py")
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
