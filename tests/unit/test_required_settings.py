"""No setting may be passed through to Spark that would make an answer another one."""

import pytest

from floodmark.core.errors import InvalidInput
from floodmark.spark.required import REQUIRED, refuse_changed
from floodmark.spark.session import open_session

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
