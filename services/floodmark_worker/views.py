"""What it takes to build buckets of a view: its definition, its table's files and schema, where its own files go."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

from pyspark.sql import SparkSession

from floodmark.core.segments import Segment
from floodmark.core.tables import TableDefinition, ViewDefinition, ViewHeader
from floodmark.ledger.ledger import Ledger
from floodmark.parquet.inspection import schema_of
from floodmark.parquet.lake import Lake
from floodmark.spark.liveness import Liveness
from floodmark.spark.materialization import Built, Inputs, Materializer
from floodmark.sql.definition import analyze
from floodmark_worker.inputs import InputCheck

VIEWS_KEPT_MAX = 256


class ViewBuilder:
    """Builds buckets of one view definition."""

    def __init__(
        self,
        spark: SparkSession,
        liveness: Liveness,
        view: ViewDefinition,
        table: TableDefinition,
        inputs: InputCheck,
        *,
        ledger: Ledger,
    ) -> None:
        self._spark = spark
        self._liveness = liveness
        self._view = view
        self._ledger = ledger
        self._base = Lake(table.location)
        self._lake = Lake(view.location)
        self._materializer: Materializer | None = None
        self.inputs = inputs

    def build(self, segments: Sequence[Segment], attempts: Mapping[int, str], *, lane: str) -> Built:
        """The files of some buckets. Raises EngineLost when it is Spark that failed, and not this work."""
        inputs = Inputs(tuple(self._base.uri(s.path) for s in segments), sum(s.rows for s in segments))
        with self._liveness.required():
            self._spark.sparkContext.setLocalProperty("spark.scheduler.pool", lane)
            if self._materializer is None:
                self._materializer = self._prepared(segments[0])
            return self._materializer.build(inputs, attempts, self._lake)

    def _prepared(self, sample: Segment) -> Materializer:
        # Read now that there is a file: the first one settles the columns, so what was known before it may be less.
        table = self._ledger.registry.header(self._view.table).definition
        columns = dict(table.columns or schema_of(self._base, sample.path))
        definition = analyze(
            self._view.select,
            table=self._view.table,
            time_column=table.time_column,
            bucket_ms=self._view.bucket_ms,
            columns=columns,
        )
        return Materializer(
            self._spark,
            definition,
            columns=columns,
            time_column=table.time_column,
            bucket_ms=self._view.bucket_ms,
            time_unit=table.time_unit,
        )


class ViewBuilders:
    """The builders of the views this process has met lately."""

    def __init__(
        self, spark: SparkSession, liveness: Liveness, ledger: Ledger, threads: Executor, *, by_content: bool
    ) -> None:
        self._spark = spark
        self._liveness = liveness
        self._ledger = ledger
        self._threads = threads
        self._by_content = by_content
        self._made: dict[str, ViewBuilder] = {}

    def of(self, header: ViewHeader) -> ViewBuilder:
        """An incarnation has one definition for as long as it lives."""
        if header.incarnation not in self._made:
            if len(self._made) >= VIEWS_KEPT_MAX:
                self._made.clear()
            self._made[header.incarnation] = self._make(header.definition)
        return self._made[header.incarnation]

    def _make(self, view: ViewDefinition) -> ViewBuilder:
        table = self._ledger.registry.definition(view.table)
        inputs = InputCheck(Lake(table.location), self._threads, by_content=self._by_content)
        return ViewBuilder(self._spark, self._liveness, view, table, inputs, ledger=self._ledger)
