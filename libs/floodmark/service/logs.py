"""Structured logs: one JSON object a line for machines, a readable form on a terminal.

Event names are constants in the past tense; facts are fields. What is bound here, and around each record by
`about_delivery`, is on every line: service, replica, topic, partition, offset, message and trace id. When, how bad
and what come first on each line, where from comes last, for whoever reads it raw.
"""

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, TextIO

import structlog

from floodmark.bus.delivery import Delivery
from floodmark.contracts.envelope import Envelope

_FIRST = ("timestamp", "level", "event")
_LAST = ("topic", "partition", "offset", "message_id", "trace_id", "tries")
# Local variables stay out: they may hold passwords, and they make one line of many screens.
_TRACEBACK = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(
    *,
    form: Literal["auto", "json", "console"],
    level: str,
    service: str,
    replica: str,
    stream: TextIO = sys.stdout,
) -> None:
    as_json = form == "json" or (form == "auto" and not stream.isatty())
    renderer = structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer()
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
        _in_reading_order(service, replica),
    ]
    if as_json:
        shared.append(structlog.processors.ExceptionRenderer(_TRACEBACK))
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
    )
    _bring_in_libraries(shared, renderer, stream, _LEVELS[level])


def _in_reading_order(service: str, replica: str) -> structlog.typing.Processor:
    def order(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        first = {name: event.pop(name) for name in _FIRST}
        last = {name: event.pop(name) for name in _LAST if name in event}  # bound ones come in no particular order
        return {**first, "service": service, "replica": replica, **event, **last}

    return order


def _bring_in_libraries(
    shared: list[structlog.typing.Processor], renderer: structlog.typing.Processor, stream: TextIO, level: int
) -> None:
    """Lines logged by libraries through the standard library take the same form."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(level, logging.WARNING))
    # kazoo warns about every failed try to reconnect. The session reports once that it was suspended, resumed or lost.
    logging.getLogger("kazoo").setLevel(logging.ERROR)


@contextmanager
def about_delivery(delivery: Delivery[Envelope]) -> Iterator[None]:
    """Bind where a record came from and what it belongs to, for every line logged while it is handled."""
    record = delivery.record
    with structlog.contextvars.bound_contextvars(
        topic=record.partition.topic,
        partition=record.partition.number,
        offset=record.offset,
        message_id=delivery.message.id,
        trace_id=delivery.message.trace_id,
        tries=delivery.tries,
    ):
        yield
