"""Spark's part, played on small row sets: it reads the very files it is given and computes the real answer.

A view is one of two queries, told by its definition's text: the number of rows of each key, or the sum of its values.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from floodmark.core.bucket_files import path_of
from floodmark.core.buckets import DataFile
from floodmark.core.errors import EngineLost
from floodmark.core.segments import Segment
from floodmark.core.tables import TableDefinition, ViewDefinition, ViewHeader
from floodmark.parquet.lake import Lake
from floodmark.spark.materialization import Built, RowsMissing
from floodmark_worker.inputs import InputCheck
from floodmark_worker.views import ViewBuilders
from tests.simulation.faults import Mishaps
from tests.simulation.files import Disk, Row, decoded, encoded
from tests.simulation.hub import Life

COUNT, SUM = "SELECT key, count(*) FROM t GROUP BY key", "SELECT key, sum(value) FROM t GROUP BY key"
POISON = "poison"
"""A row with this key fails every computation that meets it."""


def evaluated(select: str, rows: Sequence[Row], start_ms: int, end_ms: int) -> list[Row]:
    """The rows a view stores for one bucket: the one definition that builds and oracle share."""
    answer: Counter[str] = Counter()
    keys: dict[str, None] = {}
    for time_ms, key, value in rows:
        if start_ms <= time_ms < end_ms:
            keys[key] = None
            answer[key] += value if select == SUM else 1
    return [(start_ms, key, answer[key]) for key in sorted(keys)]


class SimViewBuilder:
    def __init__(self, spark: "SimSpark", header: ViewHeader, table: TableDefinition, inputs: InputCheck) -> None:
        self._spark = spark
        self._life = spark.life
        self._disk = spark.disk
        self._mishaps = spark.mishaps
        self._header = header
        self._base = Lake(table.location)
        self.inputs = inputs

    def build(self, segments: Sequence[Segment], attempts: Mapping[int, str], *, lane: str) -> Built:
        """Read every segment, then write the file of each bucket. Anything may happen in between."""
        with self._spark.required():
            return self._built(segments, attempts)

    def _built(self, segments: Sequence[Segment], attempts: Mapping[int, str]) -> Built:
        hub, view = self._life.hub, self._header.definition
        self._disk.building()
        if self._mishaps.of_job(self._life):
            hub.sleep(hub.latency_ms())
            raise RuntimeError("the executor was lost")
        rows = self._rows(segments)
        files: dict[int, tuple[DataFile, ...]] = {}
        for start_ms, attempt in attempts.items():
            hub.sleep(hub.latency_ms())
            self._spark.work()
            answer = evaluated(view.select, rows, start_ms, start_ms + view.bucket_ms)
            files[start_ms] = self._written(view, start_ms, attempt, answer) if answer else ()
        return Built(files, len(rows), sum(f.rows for written in files.values() for f in written))

    def _rows(self, segments: Sequence[Segment]) -> list[Row]:
        rows: list[Row] = []
        for segment in segments:
            with self._base.open(segment.path) as source:
                rows += decoded(source.read())
        if len(rows) != (registered := sum(s.rows for s in segments)):
            raise RowsMissing(f"{len(rows)} rows were read, {registered} are registered")
        if any(key == POISON for _, key, _ in rows):
            raise ArithmeticError("this data cannot be computed")
        return rows

    def _written(
        self, view: ViewDefinition, start_ms: int, attempt: str, answer: Sequence[Row]
    ) -> tuple[DataFile, ...]:
        path, content = path_of(start_ms, attempt, 0), encoded(answer)
        _ = self._life.hub.running  # a dead process writes nothing
        self._disk.put(view.location, path, content)
        self._disk.attempts[attempt] = self._header.incarnation
        self._life.hub.note(self._life.instance, f"computed bucket {start_ms} of {view.name} for {attempt[:8]}")
        return (DataFile(path, len(answer), len(content)),)


class SimViewBuilders(ViewBuilders):
    """The real cache of builders, making played ones. `spark` is what the worker's process was started with."""

    def of(self, header: ViewHeader) -> Any:
        if header.incarnation not in self._made:
            self._made[header.incarnation] = self._played(header)
        return self._made[header.incarnation]

    def _played(self, header: ViewHeader) -> Any:
        table = self._ledger.registry.definition(header.definition.table)
        inputs = InputCheck(Lake(table.location), self._threads, by_content=self._by_content)
        spark: SimSpark = self._spark  # type: ignore[assignment]
        return spark.builder(header, table, inputs)


class SimSpark:
    """What the worker keeps as its session, and asks whether it lives. Dead, it fails whatever is asked of it."""

    version = "played"

    def __init__(self, life: Life, disk: Disk, mishaps: Mishaps) -> None:
        self.life = life
        self.disk = disk
        self.mishaps = mishaps
        self.sparkContext = self
        self.master = "played"
        self._dead = False

    def die(self) -> None:
        """As `kill -9` of its JVM. What is being computed notices when it goes on."""
        self._dead = True

    def work(self) -> None:
        if self._dead:
            raise ConnectionResetError("nobody is there")

    def lost(self) -> str | None:
        return "it was killed" if self._dead else None

    def look(self) -> None:
        """There is nothing to find out."""

    @contextmanager
    def required(self) -> Iterator[None]:
        try:
            self.work()
            yield
        except Exception as error:
            if self._dead:
                raise EngineLost("spark is gone") from error
            raise

    def cancelAllJobs(self) -> None:  # noqa: N802 - the name it replaces
        """Jobs here end by themselves."""

    def builder(self, header: ViewHeader, table: TableDefinition, inputs: InputCheck) -> SimViewBuilder:
        return SimViewBuilder(self, header, table, inputs)
