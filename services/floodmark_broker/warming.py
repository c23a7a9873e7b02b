"""The first query waits for the classes that all queries need, unless somebody asks before it."""

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.core.tables import TableDefinition
from floodmark.query.plan import Kind, PlanReceipt, QueryPlan, Source, SourceFile, Strict
from floodmark_broker.execution import INTERPRETED_ROWS_MAX, Execution
from floodmark_broker.stopping import Ticket

_QUERY = "SELECT k, sum(v) AS s, count(*) AS n FROM warm GROUP BY k ORDER BY 2 LIMIT 2"


def warm_up(execution: Execution) -> None:
    """Run a query both ways, interpreted and compiled, over a file of a few rows."""
    with tempfile.TemporaryDirectory(prefix="floodmark-warm-") as directory:
        path = Path(directory) / "warm.parquet"
        pq.write_table(pa.table({"t": [1, 2, 3], "k": ["a", "b", "a"], "v": [1.0, 2.0, 3.0]}), path)
        columns = (("t", "int64"), ("k", "string"), ("v", "double"))
        table = TableDefinition("warm", directory, "t", columns=columns)
        for rows in (3, INTERPRETED_ROWS_MAX + 1):  # what a plan says of its rows decides how it is run
            file = SourceFile(path.name, rows, path.stat().st_size)
            source = Source("warm", Kind.BASE, "warm", directory, (file,), ("k", "v"), table)
            plan = QueryPlan(_QUERY, (source,), None, PlanReceipt((), Strict(), 0))
            execution.run(plan, Ticket("warm-up", _QUERY, 0), rows_max=10)
