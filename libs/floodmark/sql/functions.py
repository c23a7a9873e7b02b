"""What Floodmark knows of Spark's functions: only those that a definition may not use, or that it stores.

Every other function is a scalar of the row and none of our business: Spark itself says whether it exists. The lists are
those of Spark 4.3 (`listBuiltinFunctionInfos`, by group).
"""

STORABLE = frozenset({
    "sum", "count", "min", "max", "avg", "mean", "approx_count_distinct", "hll_sketch_agg", "theta_sketch_agg",
    "kll_sketch_agg_bigint", "kll_sketch_agg_double", "kll_sketch_agg_float",
})  # fmt: skip
"""Aggregates whose parts can be stored and merged later."""

INSTEAD = {
    "any": "count(*) FILTER (WHERE ...)",
    "any_value": "min(...) or max(...)",
    "approx_percentile": "kll_sketch_agg_double(...)",
    "bool_and": "count(*) FILTER (WHERE NOT ...)",
    "bool_or": "count(*) FILTER (WHERE ...)",
    "count_if": "count(*) FILTER (WHERE ...)",
    "every": "count(*) FILTER (WHERE NOT ...)",
    "median": "kll_sketch_agg_double(...)",
    "percentile": "kll_sketch_agg_double(...)",
    "percentile_approx": "kll_sketch_agg_double(...)",
    "percentile_cont": "kll_sketch_agg_double(...)",
    "percentile_disc": "kll_sketch_agg_double(...)",
    "some": "count(*) FILTER (WHERE ...)",
    "std": "sum(x), sum(x * x) and count(x)",
    "stddev": "sum(x), sum(x * x) and count(x)",
    "stddev_pop": "sum(x), sum(x * x) and count(x)",
    "stddev_samp": "sum(x), sum(x * x) and count(x)",
    "try_avg": "avg(...)",
    "try_sum": "sum(...)",
    "var_pop": "sum(x), sum(x * x) and count(x)",
    "var_samp": "sum(x), sum(x * x) and count(x)",
    "variance": "sum(x), sum(x * x) and count(x)",
}
"""For an aggregate that cannot be stored: what can, and answers the same question."""

AGGREGATES = STORABLE | INSTEAD.keys() | {
    "approx_top_k", "approx_top_k_accumulate", "approx_top_k_combine", "array_agg", "bit_and", "bit_or", "bit_xor",
    "bitmap_and_agg", "bitmap_construct_agg", "bitmap_or_agg", "collect_list", "collect_set", "collect_union", "corr",
    "count_min_sketch", "covar_pop", "covar_samp", "first", "first_value", "histogram_numeric", "hll_union_agg",
    "kll_merge_agg_bigint", "kll_merge_agg_double", "kll_merge_agg_float", "kurtosis", "last", "last_value", "listagg",
    "max_by", "measure", "min_by", "mode", "regr_avgx", "regr_avgy", "regr_count", "regr_intercept", "regr_r2",
    "regr_slope", "regr_sxx", "regr_sxy", "regr_syy", "schema_of_variant_agg", "skewness", "string_agg",
    "theta_intersection_agg", "theta_union_agg", "tuple_intersection_agg_double", "tuple_intersection_agg_integer",
    "tuple_sketch_agg_double", "tuple_sketch_agg_integer", "tuple_union_agg_double", "tuple_union_agg_integer",
    "vector_avg", "vector_sum",
}  # fmt: skip

GROUPING = frozenset({"grouping", "grouping_id"})

WINDOW = frozenset({
    "counter_diff", "cume_dist", "dense_rank", "lag", "lead", "nth_value", "ntile", "percent_rank", "rank",
    "row_number",
})  # fmt: skip

GENERATORS = frozenset({
    "explode", "explode_outer", "inline", "inline_outer", "json_tuple", "posexplode", "posexplode_outer", "stack",
    "variant_explode", "variant_explode_outer",
})  # fmt: skip

NONDETERMINISTIC = frozenset({
    # another value for each call, or for each place a row is read at
    "rand", "random", "randn", "randstr", "uniform", "uuid", "shuffle", "aes_encrypt", "monotonically_increasing_id",
    "spark_partition_id", "input_file_name", "input_file_block_start", "input_file_block_length",
    # another value at another time
    "now", "current_timestamp", "current_date", "curdate", "current_time", "localtime", "localtimestamp",
    # another value in another session
    "current_timezone", "current_user", "session_user", "user", "current_catalog", "current_database", "current_schema",
    "current_path", "version",
    # whatever the Java method does
    "java_method", "reflect", "try_reflect",
})  # fmt: skip

WITHOUT_PARENTHESES = frozenset({
    "current_timestamp", "current_date", "current_time", "localtime", "localtimestamp", "current_user", "session_user",
    "user", "current_catalog", "current_database", "current_schema", "current_path", "_metadata",
})  # fmt: skip
"""Names that mean no column of the table where the table has none of that name: functions, and the file a row is in."""

ALWAYS_CALLS = frozenset({"current_path"})
"""Calls without parentheses even where a column has that name: only `backticks` or a qualifier mean the column."""

OF_TIMES = frozenset({
    "add_months", "convert_timezone", "date", "date_add", "date_diff", "date_format", "date_part", "date_sub",
    "date_trunc", "dateadd", "datediff", "datepart", "day", "dayname", "dayofmonth", "dayofweek", "dayofyear",
    "from_utc_timestamp", "hour", "last_day", "minute", "month", "monthname", "months_between", "next_day", "quarter",
    "second", "time_bucket", "timediff", "timestamp", "timestamp_ltz", "timestamp_ntz", "timestampadd", "timestampdiff",
    "to_date", "to_timestamp", "to_timestamp_ltz", "to_timestamp_ntz", "to_unix_timestamp", "to_utc_timestamp", "trunc",
    "try_to_date", "try_to_timestamp", "unix_date", "unix_micros", "unix_millis", "unix_seconds", "unix_timestamp",
    "weekday", "weekofyear", "year",
})  # fmt: skip
"""Functions that make a date or a timestamp of text they are given."""

UNIT_FIRST = frozenset({
    "dateadd", "date_add", "datediff", "date_diff", "timediff", "timestampadd", "timestampdiff",
})  # fmt: skip
"""With three arguments, the first is a unit as a bare word, such as HOUR."""
