"""The `mdp demo` command: nearest airports by Spark and workers.

`from mdp.spark.demo import DemoOptions` works; names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from majordomo_toolkit.lazy_names import lazy_names

if TYPE_CHECKING:
    from mdp.spark.demo.demo import DemoOptions, DemoResult, checksum, run_demo

__all__ = ["DemoOptions", "DemoResult", "checksum", "run_demo"]

__getattr__ = lazy_names(__name__, dict.fromkeys(__all__, "mdp.spark.demo.demo"))
