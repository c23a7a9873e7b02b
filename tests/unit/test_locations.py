"""Whether two locations share files, and deleting inside one."""

from pathlib import Path

import pytest

from floodmark.core.errors import InvalidInput, Unavailable
from floodmark.parquet.lake import Lake
from floodmark.parquet.locations import overlap, place_of


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("/lake/a", "/lake/a"),
        ("/lake/a/", "/lake/a"),
        ("/lake/a", "/lake/a/b"),
        ("/lake/./a/../a", "/lake/a/b"),
        ("/", "/lake"),
        ("file:///lake/a", "/lake/a/b"),
        ("file:///lake/with%20space", "/lake/with space"),
        ("s3://bucket/a", "s3://bucket/a/b/"),
        ("s3://bucket", "s3://bucket/a"),
        ("s3://bucket/a?region=x", "s3://bucket/a"),
    ],
)
def test_the_same_place_and_a_place_inside_another_overlap(one: str, other: str) -> None:
    assert overlap(place_of(one), place_of(other))
    assert overlap(place_of(other), place_of(one))


@pytest.mark.parametrize(
    ("one", "other"),
    [("/lake/a", "/lake/ab"), ("/lake/a", "/lake/b/a"), ("s3://bucket/a", "s3://other/a"), ("s3://lake/a", "/lake/a")],
)
def test_neighbours_do_not(one: str, other: str) -> None:
    assert not overlap(place_of(one), place_of(other))
    assert not overlap(place_of(other), place_of(one))


def test_two_names_of_one_directory_overlap(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert overlap(place_of(str(tmp_path / "link" / "x")), place_of(str(tmp_path / "real")))


def test_a_file_is_deleted_once_and_its_directory_when_it_is_empty(tmp_path: Path) -> None:
    (tmp_path / "3600000").mkdir()
    for name in ("a", "b"):
        (tmp_path / "3600000" / name).write_bytes(b"x")
    lake = Lake(str(tmp_path))
    assert lake.delete("3600000/a")
    assert not lake.delete("3600000/a")
    lake.prune("3600000")
    assert (tmp_path / "3600000" / "b").exists()
    assert lake.delete("3600000/b")
    lake.prune("3600000")
    lake.prune("3600000")
    assert list(tmp_path.iterdir()) == []
    assert lake.is_there()


@pytest.mark.parametrize("path", ["../out", "/etc/passwd", "a/../../out", "", "linked/out"])
def test_nothing_outside_the_location_is_deleted(tmp_path: Path, path: str) -> None:
    out, inside = tmp_path / "out", tmp_path / "inside"
    inside.mkdir()
    out.write_bytes(b"x")
    (inside / "linked").symlink_to(tmp_path)
    for action in (Lake(str(inside)).delete, Lake(str(inside)).prune):
        with pytest.raises(InvalidInput, match=r"^outside-location: "):
            action(path)
    assert out.exists()


def test_a_location_that_is_not_there_is_told_from_an_empty_one(tmp_path: Path) -> None:
    assert not Lake(str(tmp_path / "later")).is_there()
    assert Lake(str(tmp_path)).is_there()


def test_a_directory_in_place_of_the_file_is_trouble_and_not_gone(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    with pytest.raises(Unavailable, match=r"a in .* cannot be deleted"):
        Lake(str(tmp_path)).delete("a")


@pytest.mark.parametrize(
    "location",
    [
        "s3://[x/y",
        "file://[a/b",
        "http://a\u2100b/x",
        "/a\0b",
        "file:///a%00b",
        "s3://b\0/x",
        "/\ud800",
        "relative/path",
    ],
)
def test_what_no_location_can_be_is_refused_by_its_rule(location: str) -> None:
    """Wherever a location is read. Given a NUL, Arrow ends the process."""
    for read in (place_of, Lake):
        with pytest.raises(InvalidInput, match=r"^location: "):
            read(location)


@pytest.mark.parametrize("uri", ["http://[::1/a.parquet", "http://a\u2100b/x.parquet", "file://[/a.parquet"])
@pytest.mark.parametrize("location", ["/lake", "file:///lake", "s3://bucket/lake?region=x"])
def test_a_uri_that_cannot_be_read_lies_outside(location: str, uri: str) -> None:
    with pytest.raises(InvalidInput, match=r"^outside-location: "):
        Lake(location).relative(uri)


@pytest.mark.parametrize("name", ["part:1.parquet", "s3:x", "dir:1/a.parquet", "C:x", "a#b?.parquet", "50%.parquet"])
def test_a_name_that_looks_like_a_uri_is_a_name(tmp_path: Path, name: str) -> None:
    lake = Lake(str(tmp_path))
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"x")
    (found,) = lake.files("*")
    assert (found.path, lake.file(name), lake.files_at([name])) == (name, found, [found])
    assert lake.has(name)
    assert lake.open(name).read() == b"x"
    assert lake.delete(name)
    with lake.create(name) as sink:
        sink.write(b"y")
    assert lake.open(name).read() == b"y"
