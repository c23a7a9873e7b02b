"""Looks at the input files of buckets before and after they are read: are they there, and what was registered?"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from enum import StrEnum

from floodmark.core.errors import InvalidInput
from floodmark.core.segments import Segment
from floodmark.parquet.inspection import content_crc
from floodmark.parquet.lake import Lake


class Diagnosis(StrEnum):
    """Why an input is not what was registered."""

    HOLD_LOST = "this worker's hold had run out, so the file may have been deleted rightly"
    DELETED = "it was deleted while it was registered and held"
    CHANGED = "it was changed in place while it was registered"
    UNKNOWN = "it is not known who did it"


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one input."""

    segment: Segment
    what: str
    absent: bool = False
    unreadable: bool = False

    def told(self, diagnosis: Diagnosis) -> str:
        return f"segment {self.segment.name!r} ({self.segment.path}): {self.what}; {diagnosis}"


@dataclass(frozen=True, slots=True)
class Checked:
    """What a look at some inputs found: the faulty ones, and what the others looked like from outside."""

    faults: Mapping[str, Fault]
    stamps: Mapping[str, str]


class InputCheck:
    """Checks the files of one table."""

    def __init__(self, lake: Lake, threads: Executor, *, by_content: bool) -> None:
        self._lake = lake
        self._threads = threads
        self._by_content = by_content

    def look(self, segments: Iterable[Segment]) -> Checked:
        """Every file against the registry, several at once."""
        listed = list(segments)
        found = list(self._threads.map(self._look_at, listed))
        pairs = list(zip(listed, found, strict=True))
        return Checked(
            {s.name: outcome for s, outcome in pairs if isinstance(outcome, Fault)},
            {s.name: outcome for s, outcome in pairs if isinstance(outcome, str)},
        )

    def changed_since(self, segments: Sequence[Segment], before: Checked) -> dict[str, Fault]:
        """Files that are not as they were at an earlier look: what was read from them cannot be trusted."""
        found = self._threads.map(self._stamp, segments)
        return {
            s.name: stamp if isinstance(stamp, Fault) else Fault(s, "it changed while it was read")
            for s, stamp in zip(segments, found, strict=True)
            if stamp != before.stamps.get(s.name)
        }

    def _look_at(self, segment: Segment) -> str | Fault:
        stamp = self._stamp(segment)
        if isinstance(stamp, Fault) or (not self._by_content and stamp == segment.stamp):
            return stamp
        try:
            crc = content_crc(self._lake, segment.path)
        except InvalidInput as error:
            absent = error.rule == "file-absent"
            return Fault(segment, str(error), absent=absent, unreadable=not absent)
        return stamp if crc == segment.crc else Fault(segment, f"its CRC is {crc}, registered is {segment.crc}")

    def _stamp(self, segment: Segment) -> str | Fault:
        try:
            file = self._lake.file(segment.path)
        except InvalidInput as error:
            return Fault(segment, str(error), unreadable=True)
        if file is None:
            return Fault(segment, "the file is missing", absent=True)
        if file.bytes != segment.bytes:
            return Fault(segment, f"the file has {file.bytes} bytes, {segment.bytes} are registered")
        return file.stamp


def diagnose(fault: Fault, *, hold_lost: bool) -> Diagnosis:
    """Who is to blame for a fault in a file that is still registered."""
    if hold_lost:
        return Diagnosis.HOLD_LOST
    if fault.unreadable:
        return Diagnosis.UNKNOWN
    return Diagnosis.DELETED if fault.absent else Diagnosis.CHANGED
