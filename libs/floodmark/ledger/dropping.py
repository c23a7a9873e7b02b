"""Drops a table: refused while a view uses it, never undone by whoever knew the table before. No file is touched.

    header of the table, live --drop--> header that says `dropped` --create--> header of the next generation

What is left of a dropped table is its header and the empty nodes below it. They are kept so that no version starts
again at 0: whoever still has a header, a snapshot or an event of the old table loses every compare-and-set on them.
Slices are deleted, so the keys of the next table's slices carry its generation.

SUBTLE: a view may be created while the table is dropped. Both write the node `dependents`, whose version they read
before everything else:

    broker      reads `dependents`, sees that the table is there
    dropper     reads `dependents`, finds no view, drops the table: `dependents` moves
    broker      creates the view: its write expects `dependents` as it was, is refused, and sees that the table is gone

The other way round the dropper's write is refused, and it finds the view.
"""

from collections.abc import Iterator

from floodmark.core.errors import InvalidInput, OutcomeUnknown, Unavailable
from floodmark.core.tables import TableHeader, ViewStatus
from floodmark.ledger import codec, paths
from floodmark.ledger.engine import Budgets, Done, Engine, Write
from floodmark.ledger.store import Check, Create, Delete, Node, Op, Set, Store
from floodmark.ledger.viewnodes import read_header

DELETED_TOGETHER = 500


class Dropping:
    def __init__(self, engine: Engine, budgets: Budgets) -> None:
        self._engine = engine
        self._store = engine.store
        self._budgets = budgets

    def drop(self, table: str) -> bool:
        """Drop a table; False when there is none. Refused, by name, while views use it."""
        path, sent = paths.table(table), False

        def attempt() -> Done[tuple[bool, int | None]] | Write[tuple[bool, int | None]]:
            nonlocal sent
            self._store.sync()
            dependents, node = self._store.read(paths.dependents(table)), self._store.read(path)
            if node is None:
                return Done((False, None))
            header = codec.decode_table(node.data, what=path)
            if header.dropped:
                return Done((sent, node.version))  # by this very call, if its answer was lost
            if users := list(self._users(table)):
                views = f"view {users[0]}" if len(users) == 1 else f"views {', '.join(users)}"
                raise InvalidInput("table-in-use", f"table {table!r} is used by {views}; drop what uses it first")
            gone = TableHeader(header.definition, header.version + 1, dropped=True)
            sent = True
            ops = [Set(path, codec.encode_table(gone), node.version), moved(table, dependents)]
            return Write(ops, (True, node.version + 1))

        is_dropped, version = self._engine.run(f"drop table {table}", self._budgets.critical, attempt).result
        if version is not None:
            clear_away(self._store, table, version)
        return is_dropped

    def _users(self, table: str) -> Iterator[str]:
        for view in sorted(self._store.children(paths.VIEWS)):
            seen = read_header(self._store, view)
            if seen is None or seen.header.status is ViewStatus.DROPPING:
                continue
            if seen.header.definition.table == table:
                yield view


def moved(table: str, dependents: Node | None) -> Op:
    """Moves the version of `dependents`, if it still is what was read."""
    path = paths.dependents(table)
    return Create(path, b"") if dependents is None else Set(path, b"", dependents.version)


def clear_away(store: Store, table: str, version: int) -> None:
    """Delete what lies below a dropped table, whose header has this version. May be repeated, by anyone, at any time.

    Every delete checks that header: once the table is created again, none of them does anything. What cannot be deleted
    now is left to whoever drops or creates a table of this name next.
    """
    standing = Check(paths.table(table), version)
    waiting = [path for level in _below(store, table) for path in level]
    try:
        for n in range(0, len(waiting), DELETED_TOGETHER):
            store.commit_many([[standing, Delete(path)] for path in waiting[n : n + DELETED_TOGETHER]])
    except (Unavailable, OutcomeUnknown):
        return


def _below(store: Store, table: str) -> Iterator[list[str]]:
    """The nodes that a table has beside those that are always there; the innermost first.

    Holds stay: they also protect the files of the dropped views of the table. As versions count on, they mean the same.
    """
    slices = [f"{paths.slices(table)}/{key}" for key in store.children(paths.slices(table))]
    for path in slices:
        yield [f"{path}/{number}" for number in store.children(path)]
    yield slices
    yield [paths.refused(table)]
    for parent in (paths.outbox(table), paths.condemned(table)):
        yield [f"{parent}/{name}" for name in store.children(parent)]
