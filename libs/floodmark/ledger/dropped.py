r"""Notes of views that were dropped or replaced: where their files lie, which nobody names any more.

    view dropped --same write--> noted --begin--> clearing --all files gone--> forgotten
                                  \--a view stands there again, which sees to them--> forgotten

A note has a node of its own beside the views, because the view's subtree goes. It is made in the write that takes the
fence away, so there is no moment at which files belong to nobody and nobody knows of them.

SUBTLE: an import names files that are there already, and those may be the very files of a view that was dropped:

    janitor    finds a note, and that no view stands at its location
    import     creates a view there, looks at the files it names: all are there
    janitor    deletes them

So the janitor says in the note that it begins, before it deletes, and an import writes every note of its location with
the write that creates it. Whoever comes second loses its write: the janitor looks again, the import is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from floodmark.core.errors import Unavailable
from floodmark.core.tables import ViewHeader
from floodmark.ledger import codec, paths
from floodmark.ledger.store import Conflicted, Create, Delete, Op, Set, Store


@dataclass(frozen=True, slots=True)
class DroppedView:
    """A view as it was when it was dropped. Whoever could read or write its files held its table since before that."""

    view: str
    table: str
    incarnation: str
    location: str
    dropped_at_ms: int
    clearing: bool = False
    node_version: int = 0


def noted(header: ViewHeader, *, now_ms: int) -> Create:
    """To be written together with whatever ends this incarnation."""
    definition = header.definition
    found = DroppedView(definition.name, definition.table, header.incarnation, definition.location, now_ms)
    return Create(paths.dropped(header.incarnation), _encode(found))


class Dropped:
    def __init__(self, store: Store) -> None:
        self._store = store

    def incarnations(self) -> list[str]:
        """What there are notes of."""
        return sorted(self._store.children(paths.DROPPED))

    def note(self, incarnation: str) -> DroppedView | None:
        node = self._store.read(paths.dropped(incarnation))
        return None if node is None else _decode(incarnation, node.data, node.version)

    def begin(self, found: DroppedView) -> DroppedView | None:
        """Say that its files are about to be deleted; None when the note has changed, so that it is looked at again."""
        clearing = replace(found, clearing=True, node_version=found.node_version + 1)
        write = Set(paths.dropped(found.incarnation), _encode(clearing), found.node_version)
        return None if isinstance(self._store.commit([write]), Conflicted) else clearing

    def forget(self, found: DroppedView) -> None:
        """Nothing is left to be done for it."""
        self._store.commit([Delete(paths.dropped(found.incarnation), found.node_version)])

    def claims(self, is_here: Callable[[str], bool]) -> list[Op]:
        """For the write that creates a view of files that are there: nobody has begun to clear them away, nor will."""
        ops: list[Op] = []
        for incarnation in self.incarnations():
            found = self.note(incarnation)
            if found is None or not is_here(found.location):
                continue
            if found.clearing:
                raise Unavailable(
                    f"the files of dropped view {found.view!r} at {found.location} are being deleted; "
                    "try again in a minute, or use another location"
                )
            ops.append(Set(paths.dropped(incarnation), _encode(found), found.node_version))
        return ops


def _encode(found: DroppedView) -> bytes:
    return codec.pack(
        {"n": found.view, "t": found.table, "l": found.location, "d": found.dropped_at_ms, "c": found.clearing}
    )


def _decode(incarnation: str, data: bytes, version: int) -> DroppedView:
    what = paths.dropped(incarnation)
    raw = codec.unpack(data, what=what)
    return codec.decoding(
        what, lambda: DroppedView(raw["n"], raw["t"], incarnation, raw["l"], raw["d"], raw["c"], version)
    )
