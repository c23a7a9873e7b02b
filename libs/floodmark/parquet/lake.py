"""A table's location: a directory or an object-store prefix, listed and read through Arrow's filesystems."""

import errno
import os
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath

from pyarrow import ArrowInvalid, NativeFile
from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType, LocalFileSystem, SubTreeFileSystem

from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.parquet.locations import LOCATION, Uri, check_location, is_name, uri_of

LINK, OUTSIDE = "link", "outside-location"
"""Rules about names that lead elsewhere."""
UNREADABLE = "file-unreadable"
# What no later try would change. Anything else may be the store or the network having a bad moment.
_HOPELESS = {errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EINVAL}


@dataclass(frozen=True, slots=True)
class LakeFile:
    """One file below the location. The stamp changes when the file does, as far as its store can tell."""

    path: str
    bytes: int
    stamp: str
    modified_at_ms: int | None
    """None where the store does not tell."""


class Lake:
    """The files of one location. Paths are relative to it, with forward slashes, and never lead out of it."""

    def __init__(self, location: str) -> None:
        self.location = location.rstrip("/") or "/"
        check_location(location)
        try:
            store, base = FileSystem.from_uri(location) if "://" in location else (LocalFileSystem(), location)
        except (ArrowInvalid, OSError, NotImplementedError) as error:
            raise InvalidInput(LOCATION, f"location {location!r} cannot be opened: {error}") from error
        self.directory = base if isinstance(store, LocalFileSystem) else None
        """Where it is when it is a local one."""
        self._files = SubTreeFileSystem(base, store)

    def relative(self, path: str) -> str:
        """The path below this location, or a refusal for one that lies or leads elsewhere."""
        below = self._below(path) if "://" in path else path
        parts = PurePosixPath(below).parts
        if not parts or below.startswith("/") or ".." in parts or "\\" in below or not is_name(below):
            raise self._outside(path)
        return posixpath.normpath(below)

    def _below(self, uri: str) -> str:
        theirs = uri_of(uri, rule=OUTSIDE)
        mine = uri_of(self.location, rule=LOCATION) if "://" in self.location else Uri("file", "", self.location)
        prefix = mine.path.rstrip("/") + "/"
        if (mine.scheme, mine.authority) != (theirs.scheme, theirs.authority) or not theirs.path.startswith(prefix):
            raise self._outside(uri)
        return theirs.path.removeprefix(prefix)

    def _outside(self, path: str) -> InvalidInput:
        return InvalidInput(OUTSIDE, f"{path!r} does not lie below {self.location}")

    def files(self, glob: str) -> Iterator[LakeFile]:
        """Every file below the location whose name fits.

        Left out are hidden files, those of unfinished writers, names that are not UTF-8, and whatever lies behind a
        link: none could be registered.
        """
        try:
            found = self._listed() if self.directory is None else _walked(self.directory)
            yield from (file for file in found if fits(file.path, glob))
        except OSError as error:
            raise Unavailable(f"location {self.location} cannot be listed: {error}") from error

    def _listed(self) -> Iterator[LakeFile]:
        for info in self._files.get_file_info(FileSelector("", recursive=True, allow_not_found=False)):
            if info.type is FileType.File and _path_of(info):
                yield _lake_file(info)

    def is_there(self) -> bool:
        """Whether there is anything at this location. An object store has no empty directories."""
        with self.reading("the directory"):
            return bool(self._files.get_file_info("").type is FileType.Directory)

    def file(self, path: str) -> LakeFile | None:
        """One file as it is now; None when there is none."""
        with self.reading(path):
            info = self._files.get_file_info(_below_base(self._inside(path)))
        return _lake_file(info) if info.type is FileType.File else None

    def has(self, path: str) -> bool:
        """Whether there is a file of this name. One that is reached only through a link goes by another name."""
        try:
            return self.file(path) is not None
        except InvalidInput as error:
            if error.rule in (LINK, OUTSIDE):
                return False
            raise

    def files_at(self, paths: Sequence[str]) -> list[LakeFile | None]:
        """These files as they are now, asked for in one go; None for each that is not there."""
        with self.reading(f"{len(paths)} files"):
            found = self._files.get_file_info([_below_base(path) for path in self._all_inside(paths)])
        return [_lake_file(info) if info.type is FileType.File else None for info in found]

    def uri(self, path: str) -> str:
        """The file as Hadoop's filesystems name it."""
        relative = self._inside(path)
        if self.directory is not None:
            return f"file://{self.directory.rstrip('/')}/{relative}"
        scheme, rest = self.location.split("://", 1)
        return f"{'s3a' if scheme == 's3' else scheme}://{rest}/{relative}"

    def open(self, path: str) -> NativeFile:
        with self.reading(path):
            return self._files.open_input_file(_below_base(self._inside(path)))

    def create(self, path: str) -> NativeFile:
        """A new file to be written, its directory made where the store has such a thing."""
        relative = self._inside(path)
        try:
            if self.directory is not None:
                self._files.create_dir(_below_base(posixpath.dirname(relative)), recursive=True)
            return self._files.open_output_stream(_below_base(relative))
        except OSError as error:
            raise Unavailable(f"{path} in {self.location} cannot be written: {error}") from error

    def delete(self, path: str) -> bool:
        """Delete one file; False when there is none."""
        inside = self._inside(path)
        try:
            self._files.delete_file(_below_base(inside))
        except FileNotFoundError:
            return False
        except OSError as error:
            raise Unavailable(f"{path} in {self.location} cannot be deleted: {error}") from error
        return True

    def prune(self, directory: str) -> None:
        """Remove a directory below the location if it is empty. Object stores have none."""
        inside = self._inside(directory)
        if self.directory is not None:
            with suppress(OSError):  # something is in it, or somebody else was quicker
                os.rmdir(f"{self.directory}/{inside}")  # noqa: PTH106 - a location is text, not a local path

    @contextmanager
    def reading(self, path: str) -> Iterator[None]:
        """What the store says while a file is looked at or read, sorted by what can be done about it."""
        try:
            yield
        except FileNotFoundError as error:
            raise InvalidInput("file-absent", f"{path} is not in {self.location}") from error
        except OSError as error:
            if error.errno in _HOPELESS:
                why = os.strerror(error.errno)
                raise InvalidInput(UNREADABLE, f"{path} in {self.location} cannot be read: {why}") from error
            raise Unavailable(f"{path} in {self.location} cannot be read: {error}") from error

    def _inside(self, path: str) -> str:
        """The relative path, having made sure that there is no symbolic link on the way.

        A file has one name: under two, its rows would count twice. The location itself may be a link.
        """
        relative = self.relative(path)
        if self.directory is not None:
            real = os.path.realpath(f"{self.directory}/{relative}")
            base = os.path.realpath(self.directory).rstrip("/") + "/"
            if not real.startswith(base):
                raise InvalidInput(OUTSIDE, f"{path!r} is a link that leads out of {self.location}")
            if real != base + relative:
                own = real.removeprefix(base)
                raise InvalidInput(LINK, f"{path!r} is reached through a link; its own name is {own!r}, announce that")
        return relative

    def _all_inside(self, paths: Sequence[str]) -> list[str]:
        """As `_inside`, but looking at each directory once: the way to a file takes longer than the file."""
        if self.directory is None:
            return [self.relative(path) for path in paths]
        inside, directories = [], set()
        for path in paths:
            relative = self.relative(path)
            directory = posixpath.dirname(relative)
            if directory not in directories or os.path.islink(f"{self.directory}/{relative}"):  # noqa: PTH114 - a text
                self._inside(path)
                directories.add(directory)
            inside.append(relative)
        return inside


def _below_base(relative: str) -> str:
    """As Arrow takes it: without the slash, it takes `part:1.parquet` for a URI and raises what is no OSError."""
    return f"/{relative}"


def is_hidden(path: str) -> bool:
    """Whether Spark would not see this file, by its name or that of a directory it lies in.

    A name with an equals sign is one of Hive's partitions, whatever it begins with.
    """
    return any(_is_hidden_name(part) for part in PurePosixPath(path).parts)


def _is_hidden_name(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name.endswith("._COPYING_")


def fits(path: str, glob: str) -> bool:
    return not is_hidden(path) and fnmatchcase(posixpath.basename(path), glob)


def _path_of(info: FileInfo) -> str:
    """Empty for a name that is not UTF-8."""
    try:
        return str(info.path)
    except UnicodeDecodeError:
        return ""


def _walked(directory: str) -> Iterator[LakeFile]:
    """Every file below a local directory, each once: links are not followed, to files or to directories.

    A link to a directory would list its files twice, one to a directory above it again and again.
    """
    waiting = [""]
    while waiting:
        below = waiting.pop()
        try:
            entries = os.scandir(f"{directory}/{below}")
        except (FileNotFoundError, NotADirectoryError):
            if not below:
                raise
            continue  # it went after its parent was listed
        with entries:
            for entry in entries:
                path = below + entry.name
                if not _is_text(entry.name) or _is_hidden_name(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(path + "/")
                elif entry.is_file(follow_symlinks=False) and (found := _stat(entry)):
                    yield LakeFile(path, *found)


def _stat(entry: os.DirEntry[str]) -> tuple[int, str, int] | None:
    """As Arrow tells of the same file. None when it went after its directory was listed."""
    try:
        found = entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    return found.st_size, f"{found.st_size}:{found.st_mtime_ns}", found.st_mtime_ns // 1_000_000


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _lake_file(info: FileInfo) -> LakeFile:
    modified_at_ms = None if info.mtime_ns is None else info.mtime_ns // 1_000_000
    return LakeFile(info.path, info.size or 0, f"{info.size}:{info.mtime_ns}", modified_at_ms)
