"""The list of a table's refused files, in one node that is written only when the list changes.

It decides nothing: a registry without it, or with a list that cannot be read, registers as ever.
"""

from collections.abc import Callable, Collection, Mapping

from floodmark.core.refusals import RefusedFile, RefusedFiles
from floodmark.ledger import codec, paths
from floodmark.ledger.engine import Budgets, Done, Engine, Write
from floodmark.ledger.store import Create, Node, Set

Change = Callable[[RefusedFiles], RefusedFiles]


class Refusals:
    def __init__(self, engine: Engine, budgets: Budgets) -> None:
        self._engine = engine
        self._store = engine.store
        self._budgets = budgets

    def read(self, table: str) -> RefusedFiles:
        return _decoded(table, self._store.read(paths.refused(table)))

    def update(self, table: str, refused: Mapping[str, tuple[str, str]], cleared: Collection[str]) -> None:
        """Put these on the list, by path with rule and reason, and take those off it."""
        now_ms = self._engine.clock.now_ms()
        files = [RefusedFile.of(path, rule, reason, now_ms) for path, (rule, reason) in refused.items()]
        self.change(table, lambda known: known.without(cleared).with_refused(files))

    def change(self, table: str, change: Change) -> None:
        known = self.read(table)
        if change(known) == known:
            return  # as nearly always

        def attempt() -> Done[None] | Write[None]:
            path = paths.refused(table)
            node = self._store.read(path)
            before = _decoded(table, node)
            after = change(before)
            if after == before or (node is None and not self._is_there(table)):
                return Done(None)
            data = _encoded(after)
            return Write([Create(path, data) if node is None else Set(path, data, node.version)], None)

        self._engine.run(f"refused files of {table}", self._budgets.critical, attempt)

    def _is_there(self, table: str) -> bool:
        header = self._store.read(paths.table(table))
        return header is not None and not codec.is_dropped(header.data, what=paths.table(table))


def _encoded(refused: RefusedFiles) -> bytes:
    files = [[f.path, f.rule, f.reason, f.since_ms] for f in refused.files]
    return codec.pack({"files": files, "others": sorted(refused.others)})


def _decoded(table: str, node: Node | None) -> RefusedFiles:
    if node is None:
        return RefusedFiles()
    what = paths.refused(table)
    raw = codec.unpack(node.data, what=what)

    def build() -> RefusedFiles:
        return RefusedFiles(tuple(RefusedFile(*row[:4]) for row in raw["files"]), frozenset(raw["others"]))

    return codec.decoding(what, build)
