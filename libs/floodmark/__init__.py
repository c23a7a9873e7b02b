"""Floodmark: keeps materialized views over data-lake tables correct and fresh."""

from floodmark.client import connect

__all__ = ["__version__", "connect"]
__version__ = "0.1.0"
