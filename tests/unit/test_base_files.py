"""What a complaint of Spark means for the files of a plan: come again, or nobody will ever read it."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest

from floodmark.core.errors import InvalidInput
from floodmark.core.tables import TableDefinition
from floodmark.parquet.inspection import content_crc
from floodmark.parquet.lake import Lake
from floodmark.query.plan import Kind, Source, SourceFile
from floodmark_broker.base_files import BaseFiles, FilesUnreadable, FilesVanished

NOBODY = 65534
JAVA_LEAVES = "/=:,;@&+$!*'()~" + "день"  # what java.net.URI does not escape in a path


def source_of(location: Path, *names: str) -> Source:
    lake, files = Lake(str(location)), []
    for name in names:
        (location / name).parent.mkdir(parents=True, exist_ok=True)
        (location / name).write_bytes(name.encode())
        found = lake.file(name)
        assert found is not None
        files.append(SourceFile(name, 1, found.bytes, content_crc(lake, name), found.stamp))
    table = TableDefinition("rides", str(location), "t")
    return Source("rides", Kind.BASE, "rides", str(location), tuple(files), (), table)


def complaint(location: Path, path: str) -> str:
    """As Spark words it, with the URI that Java makes of a path."""
    kept = "".join(c if ord(c) > 127 else quote(c, safe=JAVA_LEAVES) for c in f"{location}/{path}")
    return f"[FAILED_READ_FILE.NO_HINT] Encountered error while reading file file://{kept}. SQLSTATE: KD001"


@pytest.mark.parametrize(
    "path",
    [
        "plain.parquet",
        "city=New York/part 0.parquet",
        "ts=2024-05-01 00:00:00/p.parquet",
        "ts=2024-05-01 00%3A00/p.parquet",
        "k=день 1/50%.parquet",
        "a%20b.parquet",
        "k=[1]{2}/a#b?.parquet",
    ],
)
def test_the_file_that_spark_names_is_found_however_its_path_is_escaped(tmp_path: Path, path: str) -> None:
    source = source_of(tmp_path, "p.parquet", "b.parquet", path)
    files = BaseFiles()
    files.check([source])
    assert files.unreadable(complaint(tmp_path, path), [source], is_of_a_file=True) == path


def test_a_named_file_that_is_not_what_was_registered_is_looked_for_again(tmp_path: Path) -> None:
    source = source_of(tmp_path, "a.parquet")
    (tmp_path / "a.parquet").write_bytes(b"another")
    assert BaseFiles().unreadable(complaint(tmp_path, "a.parquet"), [source], is_of_a_file=True) is None


def test_a_complaint_that_names_none_of_the_files_is_of_one_of_them(tmp_path: Path) -> None:
    """When it is of a file at all: a temporary file of Spark that has gone says nothing of the table's."""
    source = source_of(tmp_path, "a.parquet")
    for told, of_a_file, found in (("[FAILED_READ_FILE] ?", True, "a file of rides"), ("no /tmp/shuffle", False, None)):
        assert BaseFiles().unreadable(told, [source], is_of_a_file=of_a_file) == found
    view = Source("v", Kind.VIEW, "v", "/views/v", (SourceFile("0/x.parquet", 1, 1, None, None),), (), source.table)
    assert BaseFiles().unreadable("[FAILED_READ_FILE] ?", [source, view], is_of_a_file=True) is None


@pytest.fixture
def nobody(tmp_path: Path) -> Iterator[None]:
    """What follows is done as a user who may read only what everybody may."""
    if os.geteuid() != 0:
        yield  # a mode without rights holds for us as well
        return
    for directory in (tmp_path, *tmp_path.parents):
        if Path(tempfile.gettempdir()) in directory.parents:
            directory.chmod(0o755)
    os.seteuid(NOBODY)
    yield
    os.seteuid(0)


def forbidden(location: Path, path: str, *, is_other: bool = False, closing: str | None = None) -> Source:
    """Registered when it could be read, and then no more."""
    euid = os.geteuid()
    if euid == NOBODY:
        os.seteuid(0)
    source = source_of(location, path)
    if is_other:
        os.utime(location / path, ns=(1, 1))
    (location / (closing or path)).chmod(0)
    if euid == NOBODY:
        os.seteuid(NOBODY)
    return source


@pytest.mark.usefixtures("nobody")
def test_a_file_that_nobody_may_read_is_unreadable_and_not_gone(tmp_path: Path) -> None:
    """Spark says of it that it does not exist."""
    told = f"[FAILED_READ_FILE.FILE_NOT_EXIST] File file:{tmp_path}/a.parquet does not exist"
    source, files = forbidden(tmp_path, "a.parquet"), BaseFiles()
    files.check([source])
    with pytest.raises(FilesUnreadable, match=r"a\.parquet in .* cannot be read: Permission denied"):
        files.unreadable(told, [source], is_of_a_file=False)


@pytest.mark.usefixtures("nobody")
def test_a_file_with_another_stamp_that_nobody_may_read_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(FilesUnreadable, match="Permission denied"):
        BaseFiles().check([forbidden(tmp_path, "a.parquet", is_other=True)])


@pytest.mark.usefixtures("nobody")
def test_a_file_in_a_directory_that_nobody_may_enter_is_unreadable(tmp_path: Path) -> None:
    source = forbidden(tmp_path, "closed/a.parquet", closing="closed")
    with pytest.raises(FilesUnreadable, match="Permission denied"):
        BaseFiles().check([source])


def test_a_file_that_has_gone_is_gone(tmp_path: Path) -> None:
    source = source_of(tmp_path, "a.parquet")
    (tmp_path / "a.parquet").unlink()
    with pytest.raises(FilesVanished) as vanished:
        BaseFiles().check([source])
    assert not isinstance(vanished.value, FilesUnreadable)
    assert not isinstance(vanished.value, InvalidInput)
