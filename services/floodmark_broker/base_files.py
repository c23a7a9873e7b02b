"""Whether the files of base tables that a query has read are what was registered: looked at after they were read.

Producers own these files, and some write over them. A file that still has its registered stamp when the query is
through had it all the while, so what was read is what was registered. One with another stamp may be another content, or
the same that was copied back or touched. Its content is compared once and the stamp remembered; but what it held while
the query read it, nobody knows, so the query is run again (INV-12).
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import unquote

from floodmark.core.counting import counted
from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.parquet.inspection import content_crc
from floodmark.parquet.lake import UNREADABLE, Lake, LakeFile
from floodmark.parquet.locations import LOCATION, uri_of
from floodmark.query.plan import Source, SourceFile

STAMPS_REMEMBERED_MAX = 100_000

_Proof = tuple[str, str, str, int]
"""Location, path, stamp, CRC."""


class FilesVanished(Exception):
    """Files of a plan are not there, or not as they were when the plan was made. Another plan may name others."""


class FilesUnreadable(FilesVanished):
    """A file is what was registered and Spark failed to read it, or nobody may read it. The next plan may name others;
    when it does not, no other try helps."""


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

    def unreadable(self, text: str, sources: Sequence[Source], *, is_of_a_file: bool) -> str | None:
        """What Spark cannot read although it is what was registered: the file that a message names, or one of several.

        None when that cannot be said: the file is of a view, or is not there as it was registered. Raises
        FilesUnreadable when nobody can read it. `check` has been asked before: every file has its registered stamp. So
        when the message is certainly of a file and names none of them, it is of one of them all the same.
        """
        named = _named(text, [(source, file) for source in sources for file in source.files])
        if named is not None:
            source, file = named
            return file.path if file.crc is not None and _has_crc(Lake(source.location), file) else None
        if not is_of_a_file or any(file.crc is None for source in sources for file in source.files):
            return None
        return "a file of " + " or ".join(sorted({source.of for source in sources}))

    def _check(self, source: Source, files: Sequence[SourceFile]) -> None:
        lake = Lake(source.location)
        with _sorted_out():
            found = lake.files_at([file.path for file in files])
        doubtful = [(f, now) for f, now in zip(files, found, strict=True) if now is None or now.stamp != f.stamp]
        strangers = [(f, now) for f, now in doubtful if now is None or not self._is_proven(lake, f, now)]
        for file, now in strangers:
            self._prove(lake, source.of, file, now)
        if strangers:
            raise FilesVanished(f"{counted(len(strangers), 'file')} of {source.of} had another stamp than registered")

    def _is_proven(self, lake: Lake, file: SourceFile, now: LakeFile) -> bool:
        with self._lock:
            return _proof(lake, file, now) in self._proven

    def _prove(self, lake: Lake, table: str, file: SourceFile, now: LakeFile | None) -> None:
        """Compare the content with the registry, and remember the stamp it had before it was read."""
        if now is None or now.bytes != file.bytes:
            raise FilesVanished(f"{file.path} of {table} is not there, or not as large as registered")
        crc = _content_crc(lake, file)
        if crc != file.crc:
            raise FilesVanished(f"{file.path} of {table} has the CRC {crc}, registered is {file.crc}")
        with self._lock:
            self._proven[_proof(lake, file, now)] = None
            while len(self._proven) > STAMPS_REMEMBERED_MAX:
                self._proven.popitem(last=False)


def _named(text: str, files: Sequence[tuple[Source, SourceFile]]) -> tuple[Source, SourceFile] | None:
    """Of these files, the one that a message names. Spark writes URIs, with the escapes of Java."""
    whole = [(f"{_base(source.location)}/{file.path}", source, file) for source, file in files]
    for told in (unquote(text), text):
        if found := [(source, file) for path, source, file in whole if path in told]:
            return max(found, key=lambda one: len(one[1].path))  # of the others, it has only the beginning
    return None


def _base(location: str) -> str:
    if "://" not in location:
        return location.rstrip("/")
    uri = uri_of(location, rule=LOCATION)
    return f"{uri.authority}{uri.path}".rstrip("/")


def _has_crc(lake: Lake, file: SourceFile) -> bool:
    try:
        return _content_crc(lake, file) == file.crc
    except (FilesVanished, Unavailable) as error:
        if isinstance(error, FilesUnreadable):
            raise
        return False


def _content_crc(lake: Lake, file: SourceFile) -> int:
    with _sorted_out():
        return content_crc(lake, file.path)


@contextmanager
def _sorted_out() -> Iterator[None]:
    """What the lake says of a file: that nobody may read it, or that it is not as it was."""
    try:
        yield
    except InvalidInput as error:
        if error.rule == UNREADABLE:
            raise FilesUnreadable(str(error).removeprefix(f"{UNREADABLE}: ")) from error
        raise FilesVanished(str(error)) from error


def _proof(lake: Lake, file: SourceFile, now: LakeFile) -> _Proof:
    assert file.crc is not None, f"{file.path} was not registered"
    return lake.location, file.path, now.stamp, file.crc
