"""A second engine that checks a view's rows, whatever the services run as.

DuckDB recomputes a view from the registered files and nothing else: no code of the system takes part in it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb

from floodmark.core.buckets import State
from floodmark.core.tables import ViewHeader
from floodmark.ledger.ledger import Ledger
from tests.support.eventually import eventually

Row = tuple[Any, ...]


@dataclass
class Recomputation:
    """A view's stored rows in another engine's words. `{source}` stands for the rows of the registered files."""

    sql: str
    columns: Sequence[str]


class Oracle:
    """Looks at the ledger and the files. For whoever has a ledger, and files under the paths that the ledger names."""

    ledger: Ledger
    recomputations: dict[str, Recomputation]

    # -- waiting ---------------------------------------------------------------------------------------------------

    def await_built(self, view: str, *, up_to_ms: int, within_s: float = 240) -> None:
        """Until the watermark is there, every entry is VALID from the source as it is now, and nothing is under way."""

        def built() -> bool:
            behind = self.behind(view)
            records = self.ledger.dispatch.records(view)
            watermark_ms = self.ledger.views.header(view).watermark_ms
            assert watermark_ms is not None, "nothing is covered yet"
            assert watermark_ms >= up_to_ms, f"watermark {watermark_ms} of {up_to_ms}"
            assert not behind, f"{len(behind)} behind, first {behind[:3]}, records {list(records.items())[:3]}"
            assert not records, f"records {list(records.items())[:3]}"
            return True

        eventually(built, within_s=within_s, every_s=0.2, what=f"{view} built up to {up_to_ms}")

    def behind(self, view: str) -> list[int]:
        """Buckets with an entry that is not VALID from the source as it is now."""
        state = self.ledger.views.state(view)
        definition = state.header.definition
        starts = sorted(state.entries)
        sources = self.ledger.registry.read_windows(definition.table, [definition.grid.window(s) for s in starts])
        live = {s: found.source.fingerprint for s, found in zip(starts, sources, strict=True)}
        return [s for s in starts if (e := state.entries[s]).state is not State.VALID or e.fingerprint != live[s]]

    # -- checking --------------------------------------------------------------------------------------------------

    def check(self, view: str) -> int:
        """Every VALID bucket holds exactly what DuckDB makes of the registered files. Returns how many have rows."""
        state = self.ledger.views.state(view)
        valid = sorted(s for s, e in state.entries.items() if e.state is State.VALID)
        with_rows = 0
        with connected() as duck:  # one for all: there may be a thousand buckets
            for start_ms in valid:
                stored = self.stored_rows(duck, state.header, [f.name for f in state.entries[start_ms].files])
                wanted = self._wanted_rows(duck, state.header, start_ms)
                assert stored == wanted, f"{view} bucket {start_ms}: {stored[:3]} are stored, {wanted[:3]} are right"
                with_rows += bool(wanted)
        return with_rows

    def stored_rows(self, duck: duckdb.DuckDBPyConnection, header: ViewHeader, names: Sequence[str]) -> list[Row]:
        if not names:
            return []
        paths = [f"{header.definition.location}/{name}" for name in names]
        columns = ", ".join(self.recomputations[header.definition.name].columns)
        return _rows(duck, f"SELECT {columns} FROM read_parquet({paths!r})")

    def _wanted_rows(self, duck: duckdb.DuckDBPyConnection, header: ViewHeader, start_ms: int) -> list[Row]:
        table = self.ledger.registry.definition(header.definition.table)
        window = header.definition.grid.window(start_ms)
        found = self.ledger.registry.read_window(table.name, window).segments.values()
        if not found:
            return []
        paths = [f"{table.location}/{s.path}" for s in found]
        within = (
            f"epoch_ms({table.time_column}) >= {window.start_ms} AND epoch_ms({table.time_column}) < {window.end_ms}"
        )
        source = f"(SELECT * FROM read_parquet({paths!r}) WHERE {within})"
        return _rows(duck, self.recomputations[header.definition.name].sql.format(source=source))


@contextmanager
def connected() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as duck:
        duck.execute("SET TimeZone = 'UTC'")
        yield duck


def _rows(duck: duckdb.DuckDBPyConnection, sql: str) -> list[Row]:
    rows = duck.execute(sql).fetchall()
    return sorted((tuple(_comparable(value) for value in row) for row in rows), key=repr)


def _comparable(value: Any) -> Any:
    """Sums of doubles depend on the order they are added in; nine digits of them do not."""
    return float(f"{value:.9g}") if isinstance(value, float) else value
