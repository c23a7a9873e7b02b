"""Which files of a table were refused, and why: the newest by name, older ones only counted.

A file is on the list from its refusal until it is registered or has gone. It is announced again and again meanwhile,
and refused again; that changes nothing here, so nothing is written for it.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from hashlib import blake2b

KEPT_MAX = 200
COUNTED_MAX = 10_000
PATH_CHARS_MAX, REASON_CHARS_MAX = 1_000, 500


@dataclass(frozen=True, slots=True)
class RefusedFile:
    path: str
    rule: str
    reason: str
    since_ms: int
    """When it was first refused for this reason."""

    @classmethod
    def of(cls, path: str, rule: str, reason: str, since_ms: int) -> "RefusedFile":
        """Cut to what the list keeps."""
        return cls(path[:PATH_CHARS_MAX], rule, reason[:REASON_CHARS_MAX], since_ms)

    def says_the_same(self, other: "RefusedFile") -> bool:
        return (self.path, self.rule, self.reason) == (other.path, other.rule, other.reason)


@dataclass(frozen=True, slots=True)
class RefusedFiles:
    files: tuple[RefusedFile, ...] = ()
    """Oldest first."""
    others: frozenset[int] = frozenset()
    """Those that were pushed off the list and still count, each by a hash of its path."""

    @property
    def count(self) -> int:
        return len(self.files) + len(self.others)

    def with_refused(self, found: Iterable[RefusedFile]) -> "RefusedFiles":
        files, others = {f.path: f for f in self.files}, set(self.others)
        for file in found:
            known = files.get(file.path)
            if known is not None and known.says_the_same(file):
                continue
            if known is None and len(files) >= KEPT_MAX and mark_of(file.path) in others:
                continue  # it is known, and would only push off another
            files.pop(file.path, None)
            files[file.path] = file
            others.discard(mark_of(file.path))
        pushed_off = list(files)[: max(0, len(files) - KEPT_MAX)]
        for path in pushed_off:
            del files[path]
            if len(others) < COUNTED_MAX:
                others.add(mark_of(path))
        return RefusedFiles(tuple(files.values()), frozenset(others))

    def without(self, paths: Collection[str]) -> "RefusedFiles":
        """These were registered, or have gone."""
        cut = {path[:PATH_CHARS_MAX] for path in paths}
        marks = {mark_of(path) for path in cut} if self.others else set()
        return RefusedFiles(tuple(f for f in self.files if f.path not in cut), self.others - marks)

    def still(self, waits: Callable[[str], bool], waiting: Callable[[], Iterable[str]]) -> "RefusedFiles":
        """Those that still wait, by what there is now. `waiting` are all files that are there and not registered."""
        others = self.others & {mark_of(path) for path in waiting()} if self.others else self.others
        return RefusedFiles(tuple(f for f in self.files if waits(f.path)), others)


def mark_of(path: str) -> int:
    text = path[:PATH_CHARS_MAX].encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
