"""Whether two locations share files: nobody may clear away another's."""

import os
import posixpath
from urllib.parse import unquote, urlsplit


def overlap(one: str, other: str) -> bool:
    """Whether they are the same place, or one lies inside the other."""
    first, second = _steps(one), _steps(other)
    common = min(len(first), len(second))
    return first[:common] == second[:common]


def _steps(location: str) -> tuple[str, ...]:
    """From the store down to the directory. Local links are followed: two names of one directory are one place."""
    uri = urlsplit(location) if "://" in location else None
    if uri is None or uri.scheme == "file":
        path = os.path.realpath(location if uri is None else unquote(uri.path))
        return ("file", "", *(part for part in path.split("/") if part))
    return (
        uri.scheme,
        uri.netloc,
        *(part for part in posixpath.normpath(uri.path).split("/") if part not in ("", ".")),
    )
