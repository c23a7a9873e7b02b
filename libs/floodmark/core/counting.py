"""Numbers of things, for people to read."""


def counted(count: int, noun: str) -> str:
    """`1 row`, `2 rows`, `1,234 bytes`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
