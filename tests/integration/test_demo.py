"""`floodmark demo` as a newcomer runs it: it proves what it says, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.eventually import eventually

pytestmark = [pytest.mark.stack, pytest.mark.timeout(900)]
DEMO = [str(Path(sys.executable).with_name("floodmark")), "demo"]
STEPS = 5


def processes_naming(text: str) -> list[int]:
    found = psutil.process_iter(["pid", "cmdline", "status"])
    living = [p.info for p in found if p.info["status"] != psutil.STATUS_ZOMBIE]
    return [info["pid"] for info in living if any(text in part for part in info["cmdline"] or ())]


def test_the_demo_takes_a_table_through_its_life_and_leaves_nothing_behind(tmp_path: Path) -> None:
    """Exit code 0 means that every check held; its temporary directory and its processes are gone."""
    environ = {**os.environ, "TMPDIR": str(tmp_path), "COLUMNS": "200"}
    small = [*DEMO, "--rows", "300"]
    answer = subprocess.run(small, env=environ, capture_output=True, text=True, timeout=800, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert f"{STEPS} of {STEPS} steps held" in answer.stdout
    assert "✗" not in answer.stdout
    assert answer.stdout.count("equal a fresh computation") == 2 * STEPS
    assert "_hourly 2025-07-02T10:00Z STALE: late.parquet (event " in answer.stdout
    assert "_daily 2025-07-01T00:00Z STALE" in answer.stdout
    assert not list(tmp_path.iterdir())
    assert not processes_naming(str(tmp_path))


def test_ctrl_c_in_the_middle_of_the_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    """Both signals of an impatient user, while Kafka is starting."""
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    demo = subprocess.Popen(DEMO, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    eventually(lambda: list(tmp_path.glob("*/run/kafka.json")), within_s=60, what="Kafka being started")
    demo.send_signal(signal.SIGINT)
    eventually(lambda: not list(tmp_path.glob("*/run/kafka.json")), within_s=60, what="Kafka being stopped")
    demo.send_signal(signal.SIGINT)
    output, _ = demo.communicate(timeout=60)
    assert demo.returncode == 130, output
    assert not list(tmp_path.iterdir())
    assert not processes_naming(str(tmp_path))
