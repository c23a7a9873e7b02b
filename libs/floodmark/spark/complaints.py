"""What Spark complains of, in one line. What fails in a task comes with pages of stacks, and the reason in between."""

import re

SAID_MAX = 500
_CONDITION = re.compile(r"\[[A-Z][A-Z0-9_]+(\.[A-Z0-9_]+)*\] .*")
_CAUSED_BY = "Caused by: "
_THROWN = ": "
"""Stands before what Java threw, in the second line of what the bridge to it says; the first only names a call."""


def complaint(text: str) -> str:
    """The condition by its name if Spark has one for it, and what was at the bottom of it."""
    lines = [line for line in text.strip().splitlines() if line.strip()] or ["no message"]
    condition = _CONDITION.search(text)
    causes = [line.removeprefix(_CAUSED_BY) for line in lines if line.startswith(_CAUSED_BY)]
    thrown = [line.removeprefix(_THROWN) for line in lines if line.startswith(_THROWN)]
    said = condition[0] if condition else (causes or thrown or lines)[0]
    if causes and said not in causes[-1]:
        said = f"{said[:SAID_MAX]}; {causes[-1]}"
    return said[: 2 * SAID_MAX]
