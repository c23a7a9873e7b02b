"""The lake in memory: files that may be missing, cut short, late, or behind a slow or broken disk.

`Lake` is replaced method by method, so whoever makes one, wherever, gets this. A file is `PAR1`, its rows as JSON, and
`PAR1` again; what Parquet's footer would tell is read from that. A row is (time, key, value).
"""

import io
import json
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.parquet import inspection
from floodmark.parquet.lake import Lake, LakeFile
from tests.simulation.faults import Mishaps
from tests.simulation.hub import Hub

MAGIC = b"PAR1"
Row = tuple[int, str, int]


def encoded(rows: Sequence[Sequence[Any]]) -> bytes:
    return MAGIC + json.dumps(rows).encode() + MAGIC


def decoded(content: bytes) -> list[Row]:
    if len(content) < 12 or content[:4] != MAGIC or content[-4:] != MAGIC:
        raise ValueError("not a whole file")
    return [(row[0], row[1], row[2]) for row in json.loads(content[4:-4])]


@dataclass(frozen=True)
class Stored:
    content: bytes
    modified_ns: int


@dataclass
class Disk:
    """Every file there is, by location and path."""

    hub: Hub
    mishaps: Mishaps
    files: dict[tuple[str, str], Stored] = field(default_factory=dict)
    slow_until_ms: int = 0
    building: Callable[[], None] = lambda: None
    """Told before a job reads its inputs."""
    deleting: Callable[[str, str], None] = lambda _location, _path: None
    """Told before a service deletes a file."""
    rows_by_crc: dict[int, list[Row]] = field(default_factory=dict)
    """The rows of every whole file there ever was."""
    puts: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """When each path was written, and the CRC of what was written."""
    attempts: dict[str, str] = field(default_factory=dict)
    """The incarnation of the view that each attempt was made for, once it has written."""
    _moments: int = 0

    def put(self, location: str, path: str, content: bytes) -> None:
        self._moments += 1  # two writes in one millisecond have different times
        self.files[location, path] = Stored(content, self.hub.now_ms * 1_000_000 + self._moments)
        crc = zlib.crc32(content)
        self.puts.setdefault(path, []).append((self.hub.now_ms, crc))
        try:
            self.rows_by_crc[crc] = decoded(content)
        except ValueError:
            return

    def is_whole(self, location: str, path: str) -> bool:
        stored = self.files.get((location, path))
        return stored is not None and zlib.crc32(stored.content) in self.rows_by_crc

    def take_away(self, location: str, path: str) -> Stored | None:
        return self.files.pop((location, path), None)

    def put_back(self, location: str, path: str, stored: Stored) -> None:
        """As it was, times and all."""
        self.files[location, path] = stored
        self.puts[path].append((self.hub.now_ms, zlib.crc32(stored.content)))

    def touch(self) -> None:
        """What every call on the disk takes."""
        hub = self.hub
        life = hub.running.life
        slow = hub.now_ms < self.slow_until_ms
        hub.sleep(hub.latency_ms() + (hub.randomness.randint(100, 2_000) if slow else 0))
        if self.mishaps.of_file(life):
            raise Unavailable("the disk does not answer")


class MemoryLake:
    """The methods that take the place of `Lake`'s. `disk` is the one of the run that is on."""

    disk: Disk
    location: str

    def __init__(self, location: str) -> None:
        self.location = location
        self.directory = None  # not one that could be watched

    def files(self, glob: str) -> Iterator[LakeFile]:
        self.disk.touch()
        found = [(p, s) for (location, p), s in sorted(self.disk.files.items()) if location == self.location]
        return iter([_lake_file(p, s) for p, s in found if fnmatchcase(p.rpartition("/")[2], glob)])

    def is_there(self) -> bool:
        return any(location == self.location for location, _ in self.disk.files)

    def file(self, path: str) -> LakeFile | None:
        self.disk.touch()
        stored = self.disk.files.get((self.location, path))
        return None if stored is None else _lake_file(path, stored)

    def has(self, path: str) -> bool:
        return self.file(path) is not None

    def files_at(self, paths: Sequence[str]) -> list[LakeFile | None]:
        return [self.file(path) for path in paths]

    def open(self, path: str) -> io.BytesIO:
        self.disk.touch()
        stored = self.disk.files.get((self.location, path))
        if stored is None:
            raise InvalidInput("file-absent", f"{path} is not in {self.location}")
        return io.BytesIO(stored.content)

    def delete(self, path: str) -> bool:
        self.disk.touch()
        if (self.location, path) not in self.disk.files:
            return False
        self.disk.hub.note(self.disk.hub.running.life.instance, f"deleted {self.location}/{path}")
        self.disk.deleting(self.location, path)
        del self.disk.files[self.location, path]
        return True

    def prune(self, directory: str) -> None:
        """There are no directories."""


def _lake_file(path: str, stored: Stored) -> LakeFile:
    size = len(stored.content)
    return LakeFile(path, size, f"{size}:{stored.modified_ns}", stored.modified_ns // 1_000_000)


def read(_path: str, source: io.BytesIO, *_: object) -> tuple[int, tuple[int, int, int], tuple[tuple[str, str], ...]]:
    """Stands where `inspection` reads Parquet."""
    times = [row[0] for row in decoded(source.read())]
    return len(times), (min(times), max(times), 0), ()


LAKE_METHODS = ("__init__", "files", "is_there", "file", "has", "files_at", "open", "delete", "prune")


def substitutions(disk: Disk) -> list[tuple[object, str, object]]:
    methods = [(Lake, name, MemoryLake.__dict__[name]) for name in LAKE_METHODS]
    return [
        *methods,
        (Lake, "disk", disk),
        (inspection, "_read", read),
    ]
