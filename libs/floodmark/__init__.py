"""Floodmark keeps materialized views over data-lake tables correct and fresh."""

__version__ = "0.1.0"
