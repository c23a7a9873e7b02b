"""The one rule for names of tables and views: safe as a znode, a Kafka key, a directory and an SQL identifier."""

import re

from floodmark.core.errors import InvalidInput

NAME_PATTERN = "[a-z][a-z0-9_]{0,62}"

_NAME = re.compile(NAME_PATTERN)
_SHOWN_CHARS_MAX = 80  # enough to recognise the offender; the sender decides how long it is


def is_name(value: str) -> bool:
    return _NAME.fullmatch(value) is not None


def checked_name(value: str, *, what: str = "name") -> str:
    """`value` itself when it may name a table or a view. `what` is how the message calls it, such as "view"."""
    if not is_name(value):
        raise name_refusal(value, what=what)
    return value


def name_refusal(value: str, *, what: str = "name") -> InvalidInput:
    return InvalidInput(
        "name",
        f"{what} {value[:_SHOWN_CHARS_MAX]!r} must be a lower-case letter followed by at most 62 lower-case "
        "letters, digits or underscores",
    )
