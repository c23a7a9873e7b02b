"""Durations as people write them: 5m, 1h, 1d."""

import re

from floodmark.core.errors import InvalidInput

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([1-9][0-9]{0,8})\s*(ms|s|m|h|d)")


def parse_duration_ms(text: str, *, what: str) -> int:
    """Milliseconds of "15m"; `what` names the setting in the refusal."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidInput("duration", f"{what} {text!r} must be a whole number and one of ms, s, m, h, d, such as 15m")
    return int(match[1]) * _UNITS_MS[match[2]]


def format_duration(duration_ms: int) -> str:
    for unit in ("d", "h", "m", "s"):
        if duration_ms % _UNITS_MS[unit] == 0 and duration_ms:
            return f"{duration_ms // _UNITS_MS[unit]}{unit}"
    return f"{duration_ms}ms"
