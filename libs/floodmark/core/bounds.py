"""The bounds of the numbers that everything else agrees on."""

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

# Years 1 to 9999: what RFC 3339 can write and Spark can read. The upper bound is itself allowed, as an exclusive end.
TIME_MIN_MS, TIME_MAX_MS = -62_135_596_800_000, 253_402_300_800_000

BUCKET_MAX_MS = 366 * 86_400_000
# Buckets are multiples of their width, so the one of the first instant may begin before it, and that of the last may
# end after it.
BUCKET_TIME_MIN_MS, BUCKET_TIME_MAX_MS = TIME_MIN_MS - BUCKET_MAX_MS, TIME_MAX_MS + BUCKET_MAX_MS

SEGMENT_NAME_BYTES_MAX = 1_024
