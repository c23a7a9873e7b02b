"""Files are heard of as they come, and a chore that is asked for is done at once, and never twice at the same time."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from floodmark.service.chores import Chore, Chores
from floodmark_ingester.watching import Watching
from tests.support.bus_doubles import FrozenClock
from tests.support.eventually import eventually

HOUR_MS = 3_600_000


def write_until(heard: threading.Event, directory: Path) -> None:
    """A watch takes its time to begin, and what came before it is the scan's to find."""

    def one_more() -> bool:
        (directory / f"{len(list(directory.iterdir()))}.parquet").write_bytes(b"PAR1")
        return heard.wait(0.05)

    eventually(one_more, within_s=30, what="the file heard of")


def test_a_file_in_a_watched_directory_is_heard_of(tmp_path: Path) -> None:
    """However deep it lies."""
    (tmp_path / "day=1").mkdir()
    heard = threading.Event()
    watching = Watching(heard.set)
    watching.follow({str(tmp_path)})
    write_until(heard, tmp_path / "day=1")
    watching.close()


def test_the_directories_that_are_followed_may_change(tmp_path: Path) -> None:
    """A table was defined: its directory is watched from then on."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    heard = threading.Event()
    watching = Watching(heard.set)
    watching.follow({str(first)})
    watching.follow({str(first), str(second)})
    write_until(heard, second)
    watching.close()


def test_a_directory_that_is_not_there_does_not_keep_the_others_from_being_watched(tmp_path: Path) -> None:
    """The scan complains of it; here it is just not heard of."""
    heard = threading.Event()
    watching = Watching(heard.set)
    (tmp_path / "there").mkdir()
    watching.follow({str(tmp_path / "gone"), str(tmp_path / "there")})
    write_until(heard, tmp_path / "there")
    watching.close()


def test_a_watch_that_fails_is_complained_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the machine has no watches left. The clock still scans."""

    def fails(*_directories: str, **_options: object) -> object:
        raise OSError("OS file watch limit reached")

    monkeypatch.setattr("floodmark_ingester.watching.watch", fails)
    with capture_logs() as lines:
        Watching(lambda: None).follow({str(tmp_path)})
        eventually(lambda: lines, within_s=30)
    assert [(line["event"], line["error"]) for line in lines] == [
        ("directories_not_watched", "OS file watch limit reached")
    ]
    assert lines[0]["directories"] == [str(tmp_path)]


@pytest.fixture
def pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(4)


def chores_of(do: Callable[[], object], pool: ThreadPoolExecutor) -> Chores:
    return Chores(pool, FrozenClock(0), [Chore("scan", do, HOUR_MS, due_ms=HOUR_MS)])


def test_a_chore_that_is_asked_for_does_not_wait_for_its_hour(pool: ThreadPoolExecutor) -> None:
    """Nobody steps, and its time has not come."""
    done = threading.Event()
    chores_of(done.set, pool).hurry("scan")
    assert done.wait(30)


def test_a_chore_asked_for_while_it_runs_is_done_once_more_afterwards(pool: ThreadPoolExecutor) -> None:
    """What came after it had looked would otherwise wait for the clock. However often it is asked for: once."""
    started, go_on = threading.Semaphore(0), threading.Semaphore(0)
    at_once, most = [0], [0]

    def scan() -> None:
        at_once[0] += 1
        most[0] = max(most[0], at_once[0])
        started.release()
        assert go_on.acquire(timeout=30)
        at_once[0] -= 1

    chores = chores_of(scan, pool)
    chores.hurry("scan")
    assert started.acquire(timeout=30)
    for _ in range(5):
        chores.hurry("scan")
    go_on.release()
    assert started.acquire(timeout=30), "it was not done again"
    go_on.release()
    eventually(lambda: at_once == [0], within_s=30)
    pool.shutdown(wait=True)
    assert most == [1]
    assert not started.acquire(blocking=False), "it was done a third time"
