"""The settings of Spark that rows, types or the meaning of a query depend on. Nobody may change them.

Worker and broker, a view and its table, an answer today and the one after a restart: they agree because these are the
same everywhere. What is listed here is set when Spark is started, refused when somebody asks for another value, and
looked at before each use. A setting that only costs or saves time is not in this table.
"""

from collections.abc import Iterable, Mapping

from pyspark.sql import SparkSession

from floodmark.core.errors import InvalidInput

REQUIRED: Mapping[str, str] = {
    # A bucket is a window in UTC, wherever the process runs.
    "spark.sql.session.timeZone": "UTC",
    # -- a missing or damaged input must be an error, never fewer rows (INV-9) -----------------------------------------
    "spark.sql.files.ignoreMissingFiles": "false",
    "spark.sql.files.ignoreCorruptFiles": "false",
    # Rows that a filter skips or a footer answers for would not be counted, and what is read is checked by its count.
    "spark.sql.parquet.filterPushdown": "false",
    "spark.sql.parquet.aggregatePushdown": "false",
    "spark.sql.parquet.recordLevelFilter.enabled": "false",
    # -- what an operator answers, and of which type -------------------------------------------------------------------
    "spark.sql.ansi.enabled": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    "spark.sql.charAsVarchar": "false",
    "spark.sql.preserveCharVarcharTypeInfo": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    "spark.sql.execution.arrow.useLargeVarTypes": "false",
    # -- how the text of a query is read -------------------------------------------------------------------------------
    # Otherwise '${env:NAME}' in anybody's query is replaced by what this process has in its environment.
    "spark.sql.variable.substitute": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.ansi.relationPrecedence": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.groupByOrdinal": "true",
    "spark.sql.orderByOrdinal": "true",
    "spark.sql.groupByAliases": "true",
    "spark.sql.lateralColumnAlias.enableImplicitResolution": "true",
    "spark.sql.stableDerivedColumnAlias.enabled": "false",
    # -- what the bytes of a file mean ---------------------------------------------------------------------------------
    # A time is registered as the calendar of today has it, unless its file says that Spark wrote it in the one before.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96AsTimestamp": "true",
    "spark.sql.parquet.int96TimestampConversion": "false",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
    "spark.sql.parquet.binaryAsString": "false",
    "spark.sql.parquet.fieldId.read.enabled": "false",
    "spark.sql.parquet.mergeSchema": "false",
    # What pandas writes: otherwise Spark reads nothing of a file that has such a column.
    "spark.sql.legacy.parquet.nanosAsLong": "true",
}

FAMILIES = ("spark.sql.legacy.", "spark.sql.ansi.", "spark.sql.parser.")
"""Each setting of these changes what a query means. There are hundreds; those that nobody sets have Spark's default."""


def refuse_changed(options: Mapping[str, str]) -> None:
    """Refuse settings that would make answers others than they are elsewhere."""
    for key, value in options.items():
        wanted = REQUIRED.get(key)
        if wanted is not None and value.lower() != wanted.lower():
            raise InvalidInput("spark-setting", f"{key} must be {wanted}, not {value}: rows depend on it")
    refuse_families(options)


def refuse_families(keys: Iterable[str]) -> None:
    for key in keys:
        if key.startswith(FAMILIES) and key not in REQUIRED:
            raise InvalidInput("spark-setting", f"{key} must not be set: rows depend on it; leave it out")


def check_required(spark: SparkSession) -> None:
    """The settings are looked at before each use: a session is shared, and anyone could have changed them."""
    for key, value in REQUIRED.items():
        found = spark.conf.get(key)
        assert found is not None, f"{key} is not set"
        assert found.lower() == value.lower(), f"{key} is {found}, it must be {value}"
