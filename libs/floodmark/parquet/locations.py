"""Locations as text: what a URI says, and whether two locations share files: nobody may clear away another's."""

import os
import posixpath
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from floodmark.core.errors import InvalidInput

LOCATION = "location"
"""The rule of a location that cannot be one."""

Place = tuple[str, ...]
"""From the store down to the directory, step by step."""


@dataclass(frozen=True, slots=True)
class Uri:
    scheme: str
    authority: str
    path: str
    """Of a file it is decoded. Keys of an object store are written as they are."""

    @property
    def is_file(self) -> bool:
        return self.scheme == "file"


def uri_of(text: str, *, rule: str) -> Uri:
    """What a URI says, or a refusal by this rule. Nobody else takes URIs apart: `urlsplit` raises ValueError."""
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise InvalidInput(rule, f"{text!r} is not a URI: {error}") from error
    return Uri(parts.scheme, parts.netloc, unquote(parts.path) if parts.scheme == "file" else parts.path)


def is_name(text: str) -> bool:
    """Whether a file system takes this for a name. Arrow ends the process when it meets a NUL in a location."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def check_location(location: str) -> None:
    """Raises InvalidInput for what is neither an absolute path nor a URI that can be read."""
    if "://" in location:
        path = uri_of(location, rule=LOCATION).path
    elif location.startswith("/"):
        path = location
    else:
        raise InvalidInput(LOCATION, f"location {location!r} must be an absolute path or a URI")
    if not is_name(location) or not is_name(path):
        raise InvalidInput(LOCATION, f"location {location!r} must be text in UTF-8 without NUL")


def place_of(location: str) -> Place:
    """Local links are followed: two names of one directory are one place."""
    check_location(location)
    uri = uri_of(location, rule=LOCATION) if "://" in location else None
    if uri is None or uri.is_file:
        return ("file", "", *_steps(os.path.realpath(location if uri is None else uri.path)))
    return (uri.scheme, uri.authority, *_steps(posixpath.normpath(uri.path)))


def _steps(path: str) -> list[str]:
    return [step for step in path.split("/") if step not in ("", ".")]


def overlap(one: Place, other: Place) -> bool:
    """Whether they are the same place, or one lies inside the other."""
    common = min(len(one), len(other))
    return one[:common] == other[:common]
