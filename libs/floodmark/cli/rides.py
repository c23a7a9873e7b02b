"""The demo's data: ride events in five-minute files, and its views computed afresh from those files by Arrow alone."""

import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
DAY_MS = 24 * HOUR_MS
SEGMENT_MS = 5 * MINUTE_MS
FIRST_DAY_MS = 1_751_328_000_000  # 2025-07-01T00:00Z
CITIES = ("Antwerp", "Bilbao", "Cork", "Dresden", "Évora", "Florence", "Ghent", "Helsinki", "İzmir", "Jena")

Totals = dict[tuple[int, str], tuple[int, int, int, float]]
"""For each start of a bucket and city: rides, fares in cents, rides with a distance, and the sum of the distances."""


def write_segment(location: Path, name: str, start_ms: int, *, rows: int) -> None:
    """Five minutes of rides. The file appears under its name when it is whole, as files of a lake should."""
    dice = np.random.default_rng(zlib.crc32(name.encode()) + rows)
    times = np.sort(dice.integers(start_ms, start_ms + SEGMENT_MS, rows))
    times[-1] = start_ms + SEGMENT_MS - 1  # data that ends before its bucket does leaves the bucket open
    distances = dice.gamma(2.0, 2.5, rows)
    table = pa.table(
        {
            "pickup_time": pa.array(times).cast(pa.timestamp("ms", tz="UTC")),
            "city": pa.array(np.array(CITIES)[np.minimum(dice.geometric(0.3, rows) - 1, len(CITIES) - 1)]),
            "rider": dice.integers(0, 20_000, rows),
            "fare_cents": (250 + distances * 140).astype(np.int64),
            "distance_km": pa.array(distances, mask=dice.random(rows) < 0.02),
        }
    )
    unfinished = location / f".{name}"
    pq.write_table(table, unfinished)
    unfinished.rename(location / name)


def totals_of_base(files: Iterable[Path], *, bucket_ms: int) -> Totals:
    """The views' rows, from the base files."""
    columns = ["pickup_time", "city", "fare_cents", "distance_km"]
    rides = pa.concat_tables(pq.read_table(path, columns=columns) for path in files)
    ms = rides["pickup_time"].cast(pa.int64())
    bucket = pc.multiply(pc.divide(ms, bucket_ms), bucket_ms)
    grouped = (
        rides.append_column("bucket", bucket)
        .group_by(["bucket", "city"])
        .aggregate([([], "count_all"), ("fare_cents", "sum"), ("distance_km", "count"), ("distance_km", "sum")])
    )
    wanted = ("bucket", "city", "count_all", "fare_cents_sum", "distance_km_count", "distance_km_sum")
    return _totals(grouped.select(list(wanted)))


def totals_of_view(files: Iterable[tuple[int, Path]]) -> Totals:
    """What the view's files hold: each with the start of its bucket."""
    totals: Totals = {}
    for start_ms, path in files:
        rows = pq.read_table(path, columns=["city", "rides", "fares", "distance__count", "distance__sum"])
        totals |= _totals(rows.add_column(0, "bucket", pa.array([start_ms] * rows.num_rows, pa.int64())))
    return totals


def _totals(rows: pa.Table) -> Totals:
    columns = [column.to_pylist() for column in rows.columns]
    return {(row[0], row[1]): (row[2], row[3], row[4], round(row[5] or 0.0, 4)) for row in zip(*columns, strict=True)}
