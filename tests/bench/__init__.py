"""Measurements with goals. Each module here is a suite; `python -m tests.bench [SUITE ...]` runs them."""
