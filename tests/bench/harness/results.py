"""The rows of build/bench/<suite>.json: what was measured, where and when.

Machine and time travel inside each row, so that rendering old results later, elsewhere, still tells the truth.
"""

import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from floodmark.core.errors import InvalidInput

RESULTS = Path("build/bench")


class Detail(BaseModel):
    """All that stands behind a value. `each` holds what the measuring function said about every run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    measured_at: datetime
    machine: str
    values: Sequence[float] = ()
    min: float | None = None
    max: float | None = None
    each: Sequence[Mapping[str, Any]] = ()
    error: str | None = None


class FigureResult(BaseModel):
    """One figure: the median of its runs against its goal, or no value and the error that prevented it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    value: float | None
    goal: str
    met: bool
    unit: str
    runs: int
    detail: Detail


SUITE_FILE = TypeAdapter(list[FigureResult])


def save(root: Path, suite: str, rows: Sequence[FigureResult]) -> None:
    """Replace the suite's file in one step, so that an interrupted run leaves the earlier results whole."""
    folder = root / RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / f"{suite}.{os.getpid()}.partial"
    partial.write_bytes(SUITE_FILE.dump_json(list(rows), indent=1))
    partial.replace(folder / f"{suite}.json")


def load(path: Path) -> list[FigureResult]:
    try:
        rows = SUITE_FILE.validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidInput("bench-results", f"{path} is not a list of figures: {where} {first['msg']}") from error
    if not rows:
        raise InvalidInput("bench-results", f"{path} holds no figure")
    return rows


def now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)


def machine() -> str:
    memory_gib = psutil.virtual_memory().total / 2**30
    parts = (f"{os.cpu_count()} cores", f"{memory_gib:.0f} GiB", f"Python {platform.python_version()}", java_version())
    return ", ".join(parts)


def java_version() -> str:
    try:
        answer = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "no Java"
    version = re.search(r'version "([^"]+)"', answer.stderr)
    return f"Java {version[1] if version else 'of unknown version'}"
