"""Whether two locations share files: nobody may clear away another's."""

import os
import posixpath
from urllib.parse import unquote, urlsplit

Place = tuple[str, ...]
"""From the store down to the directory, step by step."""


def place_of(location: str) -> Place:
    """Local links are followed: two names of one directory are one place."""
    uri = urlsplit(location) if "://" in location else None
    if uri is None or uri.scheme == "file":
        path = os.path.realpath(location if uri is None else unquote(uri.path))
        return ("file", "", *_steps(path))
    return (uri.scheme, uri.netloc, *_steps(posixpath.normpath(uri.path)))


def _steps(path: str) -> list[str]:
    return [step for step in path.split("/") if step not in ("", ".")]


def overlap(one: Place, other: Place) -> bool:
    """Whether they are the same place, or one lies inside the other."""
    common = min(len(one), len(other))
    return one[:common] == other[:common]
