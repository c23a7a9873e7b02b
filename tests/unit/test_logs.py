"""Log lines: one JSON object each, in reading order, with what is bound; readable on a terminal."""

import io
import json
import logging
from typing import Any, Literal

import pytest
import structlog

from floodmark.bus.delivery import Assignment, Delivery
from floodmark.bus.ports import Partition, Record
from floodmark.contracts.envelope import Envelope, originate
from floodmark.contracts.messages import SegmentAnnounced
from floodmark.service import logs


def lines(
    stream: io.StringIO, form: Literal["auto", "json", "console"] = "json", level: str = "info"
) -> structlog.stdlib.BoundLogger:
    logs.configure(form=form, level=level, service="ingester", replica="r1.0001", stream=stream)
    logger: structlog.stdlib.BoundLogger = structlog.get_logger()
    return logger


def parsed(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_begins_with_when_how_bad_and_what() -> None:
    """Whoever reads raw lines at night finds these first, then who, then the facts."""
    stream = io.StringIO()
    lines(stream).warning("bucket_frozen", view="v", bucket=3)
    line = parsed(stream)[0]
    assert list(line) == ["timestamp", "level", "event", "service", "replica", "view", "bucket"]
    assert (line["level"], line["event"], line["service"]) == ("warning", "bucket_frozen", "ingester")
    assert line["timestamp"].endswith("Z")


def test_what_a_record_belongs_to_is_on_every_line_while_it_is_handled() -> None:
    """Topic, partition, offset, message and trace id, and no trace of them afterwards."""
    stream = io.StringIO()
    logger = lines(stream)
    message = SegmentAnnounced(table="trips", action="add", path="a")
    envelope = originate(message, event_id="e1", source="test", time_ms=None)
    partition = Partition("announcements.v1", 4)
    delivery: Delivery[Envelope] = Delivery(
        Record(partition, 7, None, b""),
        envelope,
        Assignment(partition),
        None,  # type: ignore[arg-type] - nobody tells an outcome here
    )
    with logs.about_delivery(delivery):
        logger.info("inside")
    logger.info("outside")
    inside, outside = parsed(stream)
    expected = {"topic": "announcements.v1", "partition": 4, "offset": 7, "message_id": "e1", "tries": 1}
    assert {**inside, **expected, "trace_id": envelope.trace_id} == inside
    assert "offset" not in outside


def test_a_traceback_is_json_and_has_no_local_variables() -> None:
    """One line, with type, message and frames. A variable may hold a password."""
    stream = io.StringIO()
    logger = lines(stream)

    def fail(password: str) -> None:
        raise RuntimeError(f"{len(password)} characters")

    try:
        fail("hunter" + "2")  # in two parts, so that the line of code in the traceback does not have it either
    except RuntimeError:
        logger.exception("service_crashed")
    line = parsed(stream)[0]
    assert line["exception"][0]["exc_type"] == "RuntimeError"
    assert line["exception"][0]["exc_value"] == "7 characters"
    assert line["exception"][0]["frames"][-1]["name"] == "fail"
    assert "hunter2" not in stream.getvalue()


def test_lines_of_libraries_take_the_same_form_and_kazoo_keeps_its_retries_to_itself() -> None:
    """A library's warning is a JSON line that names its logger; kazoo warns at each try, so only errors pass."""
    stream = io.StringIO()
    lines(stream)
    logging.getLogger("some.library").warning("disk %s is full", "a")
    logging.getLogger("some.library").info("chatter")
    logging.getLogger("kazoo.client").warning("Connection dropped")
    logging.getLogger("kazoo.client").error("Unhandled exception")
    assert [(line["event"], line["logger"]) for line in parsed(stream)] == [
        ("disk a is full", "some.library"),
        ("Unhandled exception", "kazoo.client"),
    ]


def test_lines_below_the_level_are_left_out() -> None:
    """The setting says the least that is written."""
    stream = io.StringIO()
    logger = lines(stream, level="warning")
    logger.info("not_written")
    logger.error("written")
    assert [line["event"] for line in parsed(stream)] == ["written"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("stream", "as_json"), [(io.StringIO(), True), (Terminal(), False)])
def test_auto_is_json_unless_a_person_looks(stream: io.StringIO, *, as_json: bool) -> None:
    """A terminal gets the readable form."""
    lines(stream, form="auto").info("service_started")
    assert stream.getvalue().startswith("{") == as_json
    assert "service_started" in stream.getvalue()


def test_a_logger_that_was_used_follows_a_later_configuration() -> None:
    first, second = io.StringIO(), io.StringIO()
    logger = structlog.get_logger()
    for stream in (first, second):
        logs.configure(form="json", level="info", service="ingester", replica="r1.0001", stream=stream)
        logger.info("file_deleted")
    assert len(parsed(first)) == len(parsed(second)) == 1
