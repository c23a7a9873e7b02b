"""Times as people write and read them."""

from datetime import UTC, datetime, timedelta

from floodmark.core.bounds import TIME_MAX_MS, TIME_MIN_MS
from floodmark.core.errors import InvalidInput

_SHOWN_CHARS_MAX = 80
_DIGITS_MAX = 18


def time_ms(text: str) -> int:
    """A time as people write it: ISO 8601, UTC unless it says otherwise, or milliseconds since 1970."""
    digits = text.removeprefix("-")
    if digits.isascii() and digits.isdecimal() and len(digits) <= _DIGITS_MAX:
        ms = int(text)
    else:
        try:
            moment = datetime.fromisoformat(text)
            aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            ms = (aware - datetime.fromtimestamp(0, UTC)) // timedelta(milliseconds=1)
        except (ValueError, OverflowError) as error:
            raise InvalidInput(
                "time", f"{text[:_SHOWN_CHARS_MAX]!r} is neither a time like 2014-01-05T10:00Z nor milliseconds"
            ) from error
    if not TIME_MIN_MS <= ms <= TIME_MAX_MS:
        raise InvalidInput("time", f"{text[:_SHOWN_CHARS_MAX]!r} lies outside the years 1 to 9999")
    return ms


def utc(ms: int | None) -> str:
    """2014-01-05T10:00Z, with seconds and milliseconds only where there are any."""
    if ms is None:
        return "-"
    try:
        moment = datetime.fromtimestamp(ms // 1000, UTC)
    except (ValueError, OverflowError):
        return f"{ms} ms"
    milliseconds = f".{ms % 1000:03d}" if ms % 1000 else ""
    seconds = f"{moment:%S}" if moment.second or milliseconds else ""
    return f"{moment:%Y-%m-%dT%H:%M}" + (f":{seconds}{milliseconds}" if seconds else "") + "Z"
