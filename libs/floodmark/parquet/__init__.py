"""Parquet files and the places they lie in: the only code that imports pyarrow for files."""
