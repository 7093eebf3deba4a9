"""The version of the distribution; the build reads it too."""

__all__ = ["__version__"]

__version__ = "0.1.0"
