"""Compiles the modules listed in `pyproject.toml` with mypyc, from the sources that also run as they are.

    python -m majordomo_toolkit.extension DIRECTORY

puts the compiled modules into a directory, which can be a copy of the tree or the tree itself; `hatch_build.py` puts them into the
wheel. With `quickly` behind the directory the C compiler has half the work, and the modules are a tenth slower: for tests. It imports
nothing of ours, so that it runs before anything is installed.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["GROUP", "REQUIREMENTS", "CompilationFailed", "compile_into", "impediment", "modules_of"]

REQUIREMENTS: Final = ("mypy>=2.4", "setuptools>=65")  # of the build
GROUP: Final = "majordomo_toolkit"  # the library with all code is `majordomo_toolkit__mypyc`; each module is a small file that refers to it
# No other package is installed where pip builds a wheel, so their types are Any in every build, and only the listed modules can be wrong;
# `make types` checks everything.
_MYPY_OPTIONS: Final = (
    "--config-file=",
    "--explicit-package-bases",
    "--namespace-packages",
    "--no-site-packages",
    "--ignore-missing-imports",
    "--follow-imports=silent",
)
_BUILD: Final = "build/extension"  # the same path each time, for ccache
_PURE: Final = "MAJORDOMO_PURE"
_QUICKLY: Final = "quickly"
# Only the modules' entry points are seen from outside, so calls within the library need no table. Measured with the lines marked *cold*
# below, against neither: 14 % less CPU time for one request at a time, and 1.5 MiB less memory.
_HIDDEN: Final = "-fvisibility=hidden"
# Addresses in the library that are fixed when it is loaded are 0.9 MiB of every process as a plain list, and 0.03 MiB in this form, which
# glibc reads since 2.36 and the GNU linker writes since 2.38.
_PACKED: Final = "-Wl,-z,pack-relative-relocs"
_PACKED_SINCE: Final = (2, 36)
# Each call that may fail is followed by what reports the failure, more than the half of all code; *cold* moves it out of the way.
# Below that, three faults of the code that mypyc (2.4) makes; all C files are compiled with these lines before them.
# It asks for a negative number of bytes where a slice of bytes begins behind its end, which is SystemError instead of b"": a peer that can
# choose both would end a connection with it. And an error that is thrown into a coroutine, as asyncio does with that of an awaited future,
# loses its traceback: the log of a handler that failed in a thread would not say where. From Python 3.12 on it is thrown with a deprecated
# call, so that programs whose warnings are errors, as in many tests, would find no request cancelled.
_MENDS: Final = """
#include <Python.h>
#include <stdarg.h>
#if defined(__GNUC__)
__attribute__((cold)) void CPyErr_SetObjectAndTraceback(PyObject *, PyObject *, PyObject *);
__attribute__((cold)) void CPyError_OutOfMemory(void);
__attribute__((cold)) void CPy_AddTraceback(const char *, const char *, int, PyObject *);
__attribute__((cold)) void CPy_AttributeError(const char *, const char *, const char *, const char *, int, PyObject *);
__attribute__((cold)) void CPy_TypeError(const char *, PyObject *);
__attribute__((cold)) void CPy_TypeErrorTraceback(const char *, const char *, int, PyObject *, const char *, PyObject *);
#endif
static inline PyObject *bytes_of(const char *start, Py_ssize_t size) {
    return PyBytes_FromStringAndSize(start, size < 0 ? 0 : size);
}
static inline PyObject *bytearray_of(const char *start, Py_ssize_t size) {
    return PyByteArray_FromStringAndSize(start, size < 0 ? 0 : size);
}
static inline void error_again(PyObject *type, PyObject *value, PyObject *traceback) {
    if (traceback == Py_None && value != NULL && PyExceptionInstance_Check(value)) {
        Py_DECREF(traceback);
        traceback = PyException_GetTraceback(value);
    }
    PyErr_Restore(type, value, traceback);
}
#if PY_VERSION_HEX >= 0x030C0000
static inline PyObject *call_of(PyObject *callable, ...) {
    PyObject *given[8]; /* all its calls have at most three */
    size_t count = 0;
    va_list rest;
    va_start(rest, callable);
    while (count < 8 && (given[count] = va_arg(rest, PyObject *)) != NULL) count++;
    va_end(rest);
    if (count == 3 && PyExceptionInstance_Check(given[1])) {
        given[0] = given[1];
        count = 1;
    }
    return PyObject_Vectorcall(callable, given, count, NULL);
}
#define PyObject_CallFunctionObjArgs call_of
#endif
#define PyErr_Restore error_again
#define PyBytes_FromStringAndSize bytes_of
#define PyByteArray_FromStringAndSize bytearray_of
"""


class CompilationFailed(Exception):
    """mypyc or the C compiler refused a module; the text has what they said."""


def modules_of(root: Path) -> list[str]:
    """Return the names of the modules to compile, as listed in `pyproject.toml`."""
    with (root / "pyproject.toml").open("rb") as file:
        names: list[str] = tomllib.load(file)["tool"]["majordomo-toolkit"]["compiled"]
    return names


def impediment(*, tools: bool = True) -> str:
    """Return why nothing can be compiled here, "" if it can be."""
    if os.environ.get(_PURE, "") not in ("", "0"):
        return f"{_PURE} is set"
    if sys.implementation.name != "cpython":
        return f"this is {sys.implementation.name}, not CPython"
    if not _compiles():
        return "there is no C compiler that finds the headers of Python"
    if tools and not (find_spec("mypyc") and find_spec("setuptools")):
        return "mypyc is not installed"
    return ""


def _compiles() -> bool:
    command = _compiler()
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("#include <Python.h>\nint probe(void) { return PY_MAJOR_VERSION; }\n", encoding="utf-8")
        command += ["-c", str(source), "-o", str(source.with_suffix(".o")), f"-I{sysconfig.get_path('include')}"]
        try:
            return subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError:
            return False


def _may_pack() -> bool:
    """Whether this system loads and links libraries with packed addresses."""
    name, version = platform.libc_ver()
    if sys.platform != "linux" or name != "glibc" or tuple(map(int, version.split(".")[:2])) < _PACKED_SINCE:
        return False
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "probe.c")
        source.write_text("int probe(void) { return 0; }\n", encoding="utf-8")
        command = [*_compiler(), "-shared", "-fPIC", _PACKED, str(source), "-o", str(source.with_suffix(".so"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode == 0 and not done.stderr  # a linker that does not know it warns


def _compiler() -> list[str]:
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def compile_into(root: Path, target: Path) -> list[Path]:
    """Compile the modules of the tree at `root`; returns the files made, relative to `target`. Raises CompilationFailed."""
    # mypyc ends its process when it refuses something, and knows modules by their path from the working directory.
    command = [sys.executable, "-P", str(Path(__file__).resolve()), str(target.resolve())]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompilationFailed((done.stdout + done.stderr).strip())
    return [Path(line) for line in done.stdout.splitlines() if line.endswith(sysconfig.get_config_var("EXT_SUFFIX"))]


def _compile_here(target: Path, *, quickly: bool) -> list[str]:
    """Compile the modules of the tree in the working directory."""
    setuptools: Any = import_module("setuptools")  # first: mypyc takes what is imported
    build_ext: Any = import_module("setuptools.command.build_ext").build_ext
    mypycify: Any = import_module("mypyc.build").mypycify
    paths = [name.replace(".", "/") + ".py" for name in modules_of(Path())]
    # Measured on all C files: `-O1` takes 58 s, `-Og` 36 s, and walks over the broker's machine are 8 % slower. `-O0` takes 24 s, and they
    # are 60 % slower.
    optimization = "g" if quickly else "2"
    extensions = mypycify(
        [*_MYPY_OPTIONS, *paths], target_dir=_BUILD, group_name=GROUP, multi_file=True, opt_level=optimization, debug_level="0"
    )
    header = Path(_BUILD, "mends.h")
    header.parent.mkdir(parents=True, exist_ok=True)
    header.write_text(_MENDS, encoding="utf-8")
    packed = [_PACKED] if _may_pack() else []
    for each in extensions:
        ours = [f"/FI{header}"] if os.name == "nt" else ["-include", str(header), _HIDDEN]
        each.extra_compile_args = [*each.extra_compile_args, *ours]
        each.extra_link_args = [*each.extra_link_args, *packed]
        if quickly:
            each.sources = _joined(each.sources)
    command = build_ext(setuptools.Distribution({"name": GROUP, "ext_modules": extensions}))
    command.build_lib, command.build_temp, command.parallel = str(target), _BUILD, os.cpu_count()
    command.force = True  # setuptools looks at dates alone: not at the optimization
    command.ensure_finalized()
    build_all = command.build_extensions
    command.build_extensions = lambda: _with_all_files_at_once(command.compiler, build_all)
    command.run()
    return [os.path.relpath(made, target) for made in command.get_outputs()]


def _joined(sources: list[str]) -> list[str]:
    """Return C files of which one includes all modules of a folder.

    A module alone includes a megabyte of headers, which takes 12 s for all.
    """
    joined: dict[Path, list[str]] = {}
    for source in map(Path, sources):
        folder, dots, _ = source.stem.rpartition("___")  # mypyc writes the dots of a module's name like this
        joined.setdefault(source.with_name(f"{folder}__folder.c") if dots else source, []).append(f'#include "{source.name}"\n')
    for file, lines in joined.items():
        if str(file) not in sources:
            file.write_text("".join(lines), encoding="utf-8")
    return [str(file) for file in joined]


def _with_all_files_at_once(compiler: Any, build: Callable[[], None]) -> None:
    """Build while the C compiler takes all files of an extension at once: nearly all code is in one."""
    compile_one = compiler.compile

    def compile_all(sources: list[str], *args: Any, **options: Any) -> list[str]:
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            return [made for each in threads.map(lambda source: compile_one([source], *args, **options), sources) for made in each]

    compiler.compile = compile_all
    build()


def main() -> None:
    """Compile the tree of the working directory into a directory; prints the files made."""
    if sys.argv[2:] not in ([], [_QUICKLY]) or len(sys.argv) == 1 or not Path("pyproject.toml").exists():
        raise SystemExit(f"usage, in the folder of pyproject.toml: python -m majordomo_toolkit.extension DIRECTORY [{_QUICKLY}]")
    reason = impediment()
    if reason:
        raise SystemExit(f"not compiled: {reason}")
    print("\n".join(_compile_here(Path(sys.argv[1]), quickly=sys.argv[2:] == [_QUICKLY])))  # noqa: T201 - a program


if __name__ == "__main__":
    main()
