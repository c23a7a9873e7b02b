"""What is told of a job that Spark could not finish."""

import pytest

from floodmark.spark.complaints import complaint

THROWN = (
    "An error occurred while calling o47.getResult.\n: org.apache.spark.SparkException: Exception thrown in await: \n"
)
MISSING = "org.apache.spark.SparkException: [FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file x."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"{THROWN}\tat a\nCaused by: {MISSING}\n\tat b\nCaused by: java.io.FileNotFoundException: no x\n\tat c",
            "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file x.; "
            "java.io.FileNotFoundException: no x",
        ),
        (
            "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n== SQL ==\n10 / a",
            "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012",
        ),
        (f"{THROWN}\tat a\nCaused by: x.y: [OUT_OF_IT] no more\n\tat b", "[OUT_OF_IT] no more"),
        (
            f"{THROWN}\tat a\nCaused by: java.lang.OutOfMemoryError: Java heap space\n\tat b",
            "java.lang.OutOfMemoryError: Java heap space",
        ),
        (
            "An error occurred while calling o1.collect.\n: java.net.ConnectException: refused\n\tat a",
            "java.net.ConnectException: refused",
        ),
        ("boom\nand more", "boom"),
        ("", "no message"),
    ],
)
def test_the_reason_is_told_and_not_the_call_that_failed(text: str, said: str) -> None:
    """`An error occurred while calling o47.getResult.` helps nobody at night."""
    assert complaint(text) == said


def test_a_complaint_has_a_bounded_length() -> None:
    """It is kept in the ledger, and told in every list of views."""
    assert len(complaint("[TOO_LONG] " + "x" * 10_000 + "\nCaused by: " + "y" * 10_000)) == 1_000
