"""Finding Java: what is missing or too old is said exactly."""

from pathlib import Path

import pytest

from floodmark.core.errors import Unavailable
from floodmark.local.java import find_java


def fake_java(directory: Path, version: str) -> Path:
    """A `java` that only tells a version, the way the real one does."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    java.chmod(0o755)
    return java


def test_java_of_java_home_comes_before_path(tmp_path: Path) -> None:
    """JAVA_HOME is a statement, PATH is a habit."""
    home = fake_java(tmp_path / "home", "21.0.2")
    other = fake_java(tmp_path / "other", "17.0.1")
    environ = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)}
    assert find_java(environ) == home


def test_path_is_searched_when_java_home_holds_no_java(tmp_path: Path) -> None:
    """A JAVA_HOME left over from a removed installation does no harm."""
    java = fake_java(tmp_path, "17.0.1")
    assert find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(java.parent)}) == java


def test_missing_java_is_named_with_the_places_searched(tmp_path: Path) -> None:
    """The message says where we looked and what to install."""
    with pytest.raises(Unavailable, match=r"Java not found: no `java` in PATH.*install Java 17 or newer"):
        find_java({"PATH": str(tmp_path)})


@pytest.mark.parametrize(("version", "major"), [("11.0.22", 11), ("1.8.0_392", 8)])
def test_too_old_java_is_named_with_its_place_and_what_is_needed(tmp_path: Path, version: str, major: int) -> None:
    """Both ways in which Java has written its version are understood."""
    java = fake_java(tmp_path, version)
    with pytest.raises(Unavailable, match=f"Java {major} found at {java}, need 17 or newer"):
        find_java({"PATH": str(java.parent)})


def test_java_that_does_not_run_is_told_with_its_own_words(tmp_path: Path) -> None:
    """macOS ships a `java` that only explains how to get one."""
    java = fake_java(tmp_path, "17")
    java.write_text("#!/bin/sh\necho 'Unable to locate a Java Runtime.' >&2\nexit 1\n")
    with pytest.raises(Unavailable, match=r"exit code 1\): Unable to locate a Java Runtime"):
        find_java({"PATH": str(java.parent)})
