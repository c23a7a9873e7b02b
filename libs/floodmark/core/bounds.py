"""The bounds of the numbers that everything else agrees on."""

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

# Years 1 to 9999: what RFC 3339 can write and Spark can read. The upper bound is itself allowed, as an exclusive end.
TIME_MIN_MS, TIME_MAX_MS = -62_135_596_800_000, 253_402_300_800_000

SEGMENT_NAME_BYTES_MAX = 1_024
