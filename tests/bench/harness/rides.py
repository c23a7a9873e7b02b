"""The rides that suites measure on: 5 million of them, in files of five minutes."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SEGMENTS, ROWS, SEGMENT_MS = 1_000, 5_000, 300_000
START_MS = 1_699_999_200_000  # a full hour


def write_rides(path: Path, start_ms: int, dice: np.random.Generator, *, rows: int = ROWS) -> None:
    """One file, visible when it is whole. Fares add up to the same in any order."""
    times = np.sort(dice.integers(start_ms, start_ms + SEGMENT_MS, rows))
    times[-1] = start_ms + SEGMENT_MS - 1
    table = pa.table(
        {
            "event_time": pa.array(times).cast(pa.timestamp("ms", tz="UTC")),
            "city": pa.array(dice.integers(0, 40, rows)).cast(pa.string()),
            "kind": dice.integers(0, 5, rows),
            "fare": dice.integers(0, 3_200, rows) / 64,
            "distance": dice.integers(0, 1_000, rows),
        }
    )
    unfinished = path.with_name(f".{path.name}")
    pq.write_table(table, unfinished)
    unfinished.rename(path)
