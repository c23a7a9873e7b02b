"""What may be read of a view that was defined before its definition came to mean other columns.

A view's hash names what its files hold. Where it is not the one that the same text has today, files were built, and
will be built until the view is replaced, under a hash that also stands for:

    approx_count_distinct(x)     a sketch of the values; today, of their hashes
    struct(ZONE), (i, zone)      fields that were called after the table's columns; today, as they were written

Such columns are left to the table. `CREATE OR REPLACE MATERIALIZED VIEW` with the same text makes a view with today's.
"""

from dataclasses import replace

from floodmark.sql.model import Aggregate, Definition, Stored
from floodmark.sql.rules import Rule, refused

_FIELDS = "NAMED_STRUCT("


def as_built_before(definition: Definition, view: str) -> Definition:
    """The definition without the columns that may be otherwise in files. Raises InvalidInput when rows may be."""
    if _FIELDS in (definition.where or ""):
        raise refused(
            Rule.UNSUPPORTED_SYNTAX,
            f"view {view} chose its rows by the fields of a struct before those were called as they are written; "
            "write CREATE OR REPLACE MATERIALIZED VIEW to build it again",
        )
    keys = tuple(key for key in definition.keys if _FIELDS not in key.expression)
    return replace(definition, keys=keys, stored=tuple(filter(_is_the_same, definition.stored)))


def _is_the_same(stored: Stored) -> bool:
    text = f"{stored.argument} {stored.condition}"
    return stored.aggregate is not Aggregate.DISTINCT and _FIELDS not in text
