"""Which files may be deleted, decided on values. In doubt a file is kept (INV-11).

A file of a view that no entry names goes through three stages:

    unnamed --> dead --> garbage
       |          |
       |          +-- every hold taken before it was dead has gone, and it is old enough: no reader knows it any more
       +-- every hold taken before it was first seen has gone: its writer can no longer commit it

SUBTLE: "unnamed when first seen, and every hold taken by then has gone" is not enough to delete a file, because it may
have been named in between, while nobody looked:

    janitor  lists F, which a running attempt has written; no entry names it: first seen at 0:00
    worker   commits F at 0:10 and lets its hold go
    reader   takes a hold at 0:20 and finds F in an entry
    worker   builds the bucket anew at 0:30; F is in no entry again
    janitor  looks at 1:00: F is unnamed and has been since 0:00, the hold is younger: deletes what is being read

So a file is dead only from a moment at which its writer's hold was seen to be gone and, after that, no entry named it.
From then on it stays unnamed for ever, and whoever found it in an entry took a hold before.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from floodmark.core.bucket_files import parsed
from floodmark.core.segments import Segment


@dataclass(frozen=True, slots=True)
class Terms:
    """How patient to be."""

    grace_ms: int = 15 * 60_000
    """How old a file must be, and for how long unnamed."""
    skew_ms: int = 30_000
    """How far clocks may be apart: a hold taken this little after a moment counts as taken before it."""


class HoldTaken(Protocol):
    """What a decision needs to know of a reader's hold."""

    @property
    def reader(self) -> str: ...
    @property
    def taken_at_ms(self) -> int: ...
    @property
    def registry_version(self) -> int: ...


# -- files of views ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptFile:
    """A file that an attempt wrote for a bucket, its path relative to the view's location."""

    path: str
    start_ms: int
    attempt_id: str
    bytes: int
    modified_at_ms: int


@dataclass(frozen=True, slots=True)
class Sighting:
    """A file that no entry names: since when it is known to be so, and since when it can never be named again."""

    since_ms: int
    dead_ms: int | None = None


class Why(StrEnum):
    GARBAGE = "garbage"
    NAMED = "named"
    GRACE = "grace"
    HELD = "held"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a file may go, and if not, what it waits for: so long, and these holds."""

    file: AttemptFile
    why: Why
    since_ms: int | None = None
    wait_ms: int = 0
    holds: tuple[HoldTaken, ...] = ()


def attempt_file(path: str, *, size: int, modified_at_ms: int) -> AttemptFile | None:
    """None for whatever is not named as an attempt names its files: it is none of our business."""
    named = parsed(path)
    return named and AttemptFile(path, named.start_ms, named.attempt_id, size, modified_at_ms)


def sighted(
    before: Mapping[str, Sighting],
    files: Iterable[AttemptFile],
    *,
    named: Collection[str],
    holds: Sequence[HoldTaken],
    now_ms: int,
    terms: Terms,
) -> dict[str, Sighting]:
    """The files no entry names, by path. Files are listed first, then holds are read, then entries, then the clock."""
    seen = {}
    for file in files:
        if file.path in named:
            continue
        sighting = before.get(file.path) or Sighting(now_ms)
        if sighting.dead_ms is None and not _taken_by(sighting.since_ms, holds, terms):
            sighting = Sighting(sighting.since_ms, now_ms)
        seen[file.path] = sighting
    return seen


def judge(
    file: AttemptFile, sighting: Sighting | None, *, holds: Sequence[HoldTaken], now_ms: int, terms: Terms
) -> Verdict:
    """What becomes of a file. `sighting` is None when an entry names it."""
    if sighting is None:
        return Verdict(file, Why.NAMED)
    youngest_ms = max(sighting.since_ms, file.modified_at_ms)
    wait_ms = max(0, youngest_ms + terms.grace_ms - now_ms)
    holding = _taken_by(sighting.since_ms if sighting.dead_ms is None else sighting.dead_ms, holds, terms)
    why = Why.GRACE if wait_ms else Why.HELD if holding or sighting.dead_ms is None else Why.GARBAGE
    return Verdict(file, why, sighting.since_ms, wait_ms, holding)


def settled(since_ms: int, *, holds: Iterable[HoldTaken], now_ms: int, terms: Terms) -> bool:
    """Whether whatever was going on at this moment has come to its end: nobody is left who reads or writes by it."""
    return now_ms >= since_ms + terms.grace_ms and not _taken_by(since_ms, holds, terms)


def _taken_by(moment_ms: int, holds: Iterable[HoldTaken], terms: Terms) -> tuple[HoldTaken, ...]:
    return tuple(h for h in holds if h.taken_at_ms <= moment_ms + terms.skew_ms)


# -- segments of tables --------------------------------------------------------------------------------------------


def past_retention(segments: Iterable[Segment], *, before_ms: int) -> list[Segment]:
    """Segments whose data all lies before this time, oldest first. One without usable times is kept."""
    past = [(s.last_ms, s.name, s) for s in segments if s.last_ms is not None and s.last_ms < before_ms]
    return [segment for _, _, segment in sorted(past, key=lambda found: found[:2])]


def seeing(holds: Iterable[HoldTaken], removed_at_version: int) -> tuple[HoldTaken, ...]:
    """The holds that may still read what the registry forgot at this version."""
    return tuple(h for h in holds if h.registry_version < removed_at_version)
