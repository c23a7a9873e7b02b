"""The `floodmark` command."""
