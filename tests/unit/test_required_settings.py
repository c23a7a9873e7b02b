"""No setting may be passed through to Spark that would make an answer another one."""

from types import SimpleNamespace
from typing import Any

import pytest

from floodmark.core.errors import InvalidInput
from floodmark.spark.materialization import Inputs, Materializer
from floodmark.spark.required import REQUIRED, check_required, refuse_changed
from floodmark.spark.session import open_session
from floodmark_broker.execution import _Session

NAMED = (
    "spark.sql.ansi.enabled",
    "spark.sql.decimalOperations.allowPrecisionLoss",
    "spark.sql.timestampType",
    "spark.sql.session.timeZone",
    "spark.sql.mapKeyDedupPolicy",
    "spark.sql.caseSensitive",
    "spark.sql.storeAssignmentPolicy",
    "spark.sql.legacy.timeParserPolicy",
    "spark.sql.legacy.parquet.nanosAsLong",
    "spark.sql.parquet.datetimeRebaseModeInRead",
    "spark.sql.parquet.int96RebaseModeInRead",
    "spark.sql.parquet.int96TimestampConversion",
    "spark.sql.parquet.binaryAsString",
    "spark.sql.files.ignoreCorruptFiles",
    "spark.sql.files.ignoreMissingFiles",
    "spark.sql.variable.substitute",
)


@pytest.mark.parametrize("key", sorted({*NAMED, *REQUIRED}))
def test_another_value_of_a_required_setting_is_refused_before_spark_starts(key: str) -> None:
    with pytest.raises(InvalidInput, match=f"spark-setting: {key} must be "):
        open_session({key: "another"}, name="never started")


@pytest.mark.parametrize(
    "key",
    ["spark.sql.legacy.sizeOfNull", "spark.sql.legacy.castComplexTypesToString.enabled", "spark.sql.ansi.strictly"],
)
def test_a_setting_that_would_bring_an_old_meaning_back_is_refused(key: str) -> None:
    """There are hundreds of them, and each release has more."""
    with pytest.raises(InvalidInput, match=f"spark-setting: {key} must not be set"):
        refuse_changed({key: "true"})


def test_what_only_costs_or_saves_time_may_be_set() -> None:
    refuse_changed({"spark.executor.memory": "4g", "spark.sql.adaptive.enabled": "true", **REQUIRED})


# -- a session that somebody has changed -------------------------------------------------------------------------------


def played(**changed: str) -> Any:
    """A session of Spark, as far as its settings go."""
    settings = {**REQUIRED, **changed}
    session = SimpleNamespace(conf=SimpleNamespace(get=settings.get, set=settings.__setitem__))
    session.newSession = lambda: session
    return session


def built_on(session: Any) -> None:
    worker: Any = SimpleNamespace(_spark=session)  # of which nothing else may be asked
    Materializer.build(worker, Inputs((), 0), {}, Any)  # type: ignore[arg-type]


def asked_on(session: Any) -> None:
    _Session(session, [("spark.sql.shuffle.partitions", "1")])


@pytest.mark.parametrize("use", [built_on, asked_on])
def test_a_session_that_somebody_has_changed_is_not_used(use: Any) -> None:
    """INV-9, INV-12. It is looked at before each build, and before a session answers any query."""
    for key, wanted in REQUIRED.items():
        with pytest.raises(AssertionError, match=f"^{key} is another, it must be {wanted}$"):
            use(played(**{key: "another"}))
    check_required(played())
