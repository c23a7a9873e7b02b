"""Brings a view that an earlier version defined to what its query means today.

    version before    trips_hourly, hash h0, files that hold n + n       a text that it read wrongly
    this version      its next incarnation, hash h1, the same entries    h0 is not h1: none is read, each is built again

Whoever builds buckets or looks after them does this first, so nobody has to ask for it. Brokers do not write: until it
is done, they leave the view alone.
"""

from floodmark.core.tables import ViewHeader, ViewStatus
from floodmark.ledger.ledger import Ledger
from floodmark.sql.definition import definition_hash
from floodmark.sql.meaning import is_outdated, meaning_of


def renewed(ledger: Ledger, header: ViewHeader) -> ViewHeader | None:
    """The view by the meaning its query has today, which may be the view as it is; None when it is gone."""
    definition = header.definition
    if header.status is ViewStatus.DROPPING or not is_outdated(definition):
        return header
    today = definition_hash(definition.table, definition.select, definition.bucket_ms)
    return ledger.views.renew(header, definition_hash=today, meaning=meaning_of(definition.select))
