"""What the files of buckets are called: `START_MS/ATTEMPT-N.parquet`, below the view's location.

Whoever writes a file and whoever clears it away read this one module: a name that could be made and not recognised
would be a file that nobody ever deletes.
"""

import re
from typing import NamedTuple

_UUID = "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
# Numbers come from Spark's task attempt ids, which grow for as long as a session lives. The bound is only there so that
# no name of somebody else's is read as a number of thousands of digits.
_BUCKET_FILE = re.compile(rf"(0|-?[1-9][0-9]{{0,38}})/({_UUID})-(0|[1-9][0-9]{{0,38}})\.parquet")


class BucketFile(NamedTuple):
    start_ms: int
    attempt_id: str
    number: int


def path_of(start_ms: int, attempt_id: str, number: int) -> str:
    """Named by bucket and attempt: no two attempts ever write the same file."""
    return f"{start_ms}/{attempt_id}-{number}.parquet"


def parsed(path: str) -> BucketFile | None:
    """None for whatever is not exactly of the form that `path_of` makes: it is none of our business."""
    match = _BUCKET_FILE.fullmatch(path)
    return None if match is None else BucketFile(int(match[1]), match[2], int(match[3]))
