"""Every file that a worker can write is one that the janitor recognises, and nothing else is (INV-11)."""

import random
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.core import garbage
from floodmark.core.bucket_files import parsed, path_of
from floodmark.core.ports import new_id
from floodmark.parquet.lake import Lake
from floodmark.parquet.writing import write_bucket
from floodmark.spark import output

STARTS = st.integers(-(2**63), 2**63 - 1)
ATTEMPTS = st.integers(0, 2**63).map(lambda seed: new_id(random.Random(seed)))
NUMBERS = st.integers(0, (2**63 - 1) * output._NUMBERS_PER_TASK + 10**6)
"""Spark's task attempt ids are 64-bit numbers, each with room for so many files."""


@given(STARTS, ATTEMPTS, NUMBERS)
def test_every_name_that_can_be_made_is_recognised(start_ms: int, attempt_id: str, number: int) -> None:
    path = path_of(start_ms, attempt_id, number)
    assert parsed(path) == (start_ms, attempt_id, number)
    found = garbage.attempt_file(path, size=1, modified_at_ms=2)
    assert found == garbage.AttemptFile(path, start_ms, attempt_id, 1, 2)


@given(st.one_of(st.text("0123456789abcdef-/.parquet", max_size=80), st.text(max_size=20)))
def test_what_is_recognised_is_exactly_what_can_be_made(path: str) -> None:
    found = parsed(path)
    assert found is None or path_of(*found) == path


@pytest.mark.parametrize("task_attempt_id", [0, 9_999, 10_000, 123_456_789])
def test_a_file_of_a_session_that_has_run_many_tasks_is_recognised(tmp_path: Path, task_attempt_id: int) -> None:
    """From task 10,000 on the number has ten digits; a worker's session gets there within hours."""
    attempt_id = new_id(random.Random(1))
    first = task_attempt_id * output._NUMBERS_PER_TASK
    files = write_bucket(Lake(str(tmp_path)), -3_600_000, attempt_id, pa.table({"n": [1]}), first_number=first)
    found = [garbage.attempt_file(file.name, size=file.bytes, modified_at_ms=0) for file in files]
    assert [f and (f.start_ms, f.attempt_id) for f in found] == [(-3_600_000, attempt_id)]
