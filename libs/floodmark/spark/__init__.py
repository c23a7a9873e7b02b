"""Spark: one warm session, and the computation of buckets on it. The only code that imports pyspark."""
