"""Condemned files: past their table's retention, registered no longer, and not deleted yet: someone may read them.

A node for each removal, named after the registry version of that removal and written in the same multi. So a path is
registered, or condemned, or neither, but never both: who registers a path looks here within an attempt that checks the
header's version, and every removal sets the header.

SUBTLE: looking here before the attempt would not do. A file is announced anew, the look finds nothing; the janitor
removes its segment and condemns the path; the registrar registers it again, and the janitor deletes a registered file.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from floodmark.core.errors import InvalidInput
from floodmark.core.registry import Command, CommandsRefused, Put
from floodmark.ledger import codec, paths
from floodmark.ledger.store import Node, Store


@dataclass(frozen=True, slots=True)
class CondemnedFile:
    """A file as it was registered: what looks different now is another file."""

    path: str
    bytes: int
    stamp: str


@dataclass(frozen=True, slots=True)
class Condemnation:
    """The files of one removal. A hold taken at this registry version or later cannot see them."""

    table: str
    version: int
    event_id: str
    condemned_at_ms: int
    files: tuple[CondemnedFile, ...]
    node_version: int = 0


def read_condemned(store: Store, table: str) -> list[Condemnation]:
    """Everything condemned of a table, oldest first."""
    names = sorted(store.children(paths.condemned(table)))
    nodes = store.read_many([f"{paths.condemned(table)}/{name}" for name in names])
    found = zip(names, nodes, strict=True)
    return [decode(table, int(name), node) for name, node in found if node is not None]


def refuse_condemned(store: Store, table: str, commands: Iterable[Command]) -> None:
    """A condemned path cannot be registered: its file is about to go."""
    wanted = {c.segment.path: c.name for c in commands if isinstance(c, Put)}
    condemned = {file.path for found in read_condemned(store, table) for file in found.files} if wanted else set()
    why = f"past the retention of table {table!r} and about to be deleted"
    if hit := sorted(wanted.keys() & condemned):
        raise CommandsRefused({wanted[path]: InvalidInput("condemned", f"{path} is {why}") for path in hit})


def encode(condemnation: Condemnation) -> bytes:
    files = [[f.path, f.bytes, f.stamp] for f in condemnation.files]
    return codec.pack({"e": condemnation.event_id, "t": condemnation.condemned_at_ms, "f": files})


def decode(table: str, version: int, node: Node) -> Condemnation:
    what = paths.condemned_at(table, version)
    raw = codec.unpack(node.data, what=what)

    def build() -> Condemnation:
        files = tuple(CondemnedFile(*row[:3]) for row in raw["f"])
        return Condemnation(table, version, raw["e"], raw["t"], files, node.version)

    return codec.decoding(what, build)
