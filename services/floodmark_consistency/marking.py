"""Marking one view: extend its coverage where older data came, then mark what the changes touched."""

import structlog

from floodmark.core.debounce import Batch
from floodmark.core.errors import InvalidInput
from floodmark.core.tables import CoverageMode, ViewHeader
from floodmark.ledger.ledger import Ledger
from floodmark.ledger.viewnodes import SeenHeader

log = structlog.get_logger()

TRACES_LOGGED_MAX = 50


def mark_view(ledger: Ledger, view: str, batch: Batch) -> None:
    """Bring a batch of marks into the ledger; returns when they are durable."""
    try:
        seen = _with_coverage(ledger, ledger.views.current(view), batch)
    except InvalidInput as error:
        if error.rule == "unknown-view":
            return  # dropped meanwhile: nothing is left to mark
        raise
    marks = batch.marks
    marked = ledger.views.mark(view, marks, known=seen)
    touched = sorted((*marked.invalidated, *marked.synthesized))
    log.info(
        "view_marked",
        view=view,
        table=seen.header.definition.table,
        invalidated=len(marked.invalidated),
        synthesized=len(marked.synthesized),
        in_runs=marked.in_runs,
        first_bucket_ms=touched[0] if touched else None,
        last_bucket_ms=touched[-1] if touched else None,
        events=len(marks),
        trace_ids=list(dict.fromkeys(m.cause.trace_id for m in marks))[:TRACES_LOGGED_MAX],
        segments=[name for m in marks[:TRACES_LOGGED_MAX] for name in m.cause.segments],
    )


def _with_coverage(ledger: Ledger, seen: SeenHeader, batch: Batch) -> SeenHeader:
    """Older data than the view covers: cover it, unless the view was told to stay as it is."""
    if batch.added is None or not follows(seen.header, batch.added.from_ms):
        return seen
    view = seen.header.definition.name
    ledger.views.extend_coverage(view, batch.added.from_ms, batch.added.cause)
    return ledger.views.current(view)


def follows(header: ViewHeader, start_ms: int) -> bool:
    """Whether the coverage of this view is to begin earlier, now that there is data from this time on."""
    if header.coverage_start_ms is None:
        return True
    return start_ms < header.coverage_start_ms and header.definition.coverage is CoverageMode.EXTEND
