"""Defining tables and views: the one way, whoever asks (a library call, a command, a file, and later SQL)."""
