"""Whether the files of base tables that a query has read are what was registered: looked at after they were read.

Producers own these files, and some write over them. A file that still has its registered stamp when the query is
through had it all the while, so what was read is what was registered. One with another stamp may be another content, or
the same that was copied back or touched. Its content is compared once and the stamp remembered; but what it held while
the query read it, nobody knows, so the query is run again (INV-12).
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from urllib.parse import quote

from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.parquet.inspection import content_crc
from floodmark.parquet.lake import Lake, LakeFile
from floodmark.query.plan import Source, SourceFile

STAMPS_REMEMBERED_MAX = 100_000

_Proof = tuple[str, str, str, int]
"""Location, path, stamp, CRC."""


class FilesVanished(Exception):
    """Files of a plan are not there, or not as they were when the plan was made. Another plan may name others."""


class FilesUnreadable(FilesVanished):
    """A file is what was registered and Spark failed to read it. When it does so again, it always will."""


class BaseFiles:
    """Remembers stamps that are not the registered ones though the content is. Asked by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._proven: OrderedDict[_Proof, None] = OrderedDict()

    def check(self, sources: Sequence[Source]) -> None:
        """After a query has read these sources: raises FilesVanished if it may have read anything else."""
        for source in sources:
            registered = [file for file in source.files if file.crc is not None]
            if registered:
                self._check(source, registered)

    def whole_file_in(self, text: str, sources: Sequence[Source]) -> str | None:
        """The path of the file that a message names, if its content can be read and is what was registered."""
        named = [
            (source, file)
            for source in sources
            for file in source.files
            if file.crc is not None and (f"/{file.path}" in text or f"/{quote(file.path)}" in text)
        ]
        if not named:
            return None
        source, file = max(named, key=lambda found: len(found[1].path))  # the others are only how its path ends
        return file.path if _has_crc(Lake(source.location), file) else None

    def _check(self, source: Source, files: Sequence[SourceFile]) -> None:
        lake = Lake(source.location)
        found = lake.files_at([file.path for file in files])
        doubtful = [(f, now) for f, now in zip(files, found, strict=True) if now is None or now.stamp != f.stamp]
        strangers = [(f, now) for f, now in doubtful if now is None or not self._is_proven(lake, f, now)]
        for file, now in strangers:
            self._prove(lake, source.of, file, now)
        if strangers:
            raise FilesVanished(f"{len(strangers)} files of {source.of} had another stamp than registered")

    def _is_proven(self, lake: Lake, file: SourceFile, now: LakeFile) -> bool:
        with self._lock:
            return _proof(lake, file, now) in self._proven

    def _prove(self, lake: Lake, table: str, file: SourceFile, now: LakeFile | None) -> None:
        """Compare the content with the registry, and remember the stamp it had before it was read."""
        if now is None or now.bytes != file.bytes:
            raise FilesVanished(f"{file.path} of {table} is not there, or not as large as registered")
        try:
            crc = content_crc(lake, file.path)
        except InvalidInput as error:
            raise FilesVanished(str(error)) from error
        if crc != file.crc:
            raise FilesVanished(f"{file.path} of {table} has the CRC {crc}, registered is {file.crc}")
        with self._lock:
            self._proven[_proof(lake, file, now)] = None
            while len(self._proven) > STAMPS_REMEMBERED_MAX:
                self._proven.popitem(last=False)


def _has_crc(lake: Lake, file: SourceFile) -> bool:
    try:
        return content_crc(lake, file.path) == file.crc
    except (InvalidInput, Unavailable):
        return False


def _proof(lake: Lake, file: SourceFile, now: LakeFile) -> _Proof:
    assert file.crc is not None, f"{file.path} was not registered"
    return lake.location, file.path, now.stamp, file.crc
