"""Floodmark's fingerprints against the Guava that ships with Spark, on windows nobody chose."""

import base64
import random
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from floodmark.core.fingerprint import fingerprint
from floodmark.core.segments import Segment
from floodmark.local.java import find_java

SOURCE = Path(__file__).parents[1] / "data" / "GuavaFingerprints.java"
WINDOWS = 1_000
# Characters from where encodings and sort orders differ: ASCII, two and three bytes, the private and last ones of the
# basic plane (after the surrogates), and astral ones (as surrogate pairs before those).
RANGES = ((0x20, 0x7E), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, 0x10FFFF))


def guava_classpath() -> str:
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.origin is not None
    jars = Path(spec.origin).parent / "jars"
    found = sorted([*jars.glob("guava-*.jar"), *jars.glob("failureaccess-*.jar")])
    assert found, f"no Guava in {jars}"
    return ":".join(map(str, found))


def random_window(randomness: random.Random) -> list[Segment]:
    """Up to 12 segments with names like no one would choose, and CRCs over the whole range of int64."""
    names = {_name(randomness) for _ in range(randomness.randint(0, 12))}
    listed = randomness.sample(sorted(names), len(names))
    return [Segment(name, randomness.randint(-(2**63), 2**63 - 1), 0, 1, "p", 1, 1) for name in listed]


def _name(randomness: random.Random) -> str:
    """Sometimes two names differ only late, so that the order is decided between unlike characters."""
    shared = randomness.choice(["", "", "part-", "\U0001f600"])
    ranges = randomness.choices(RANGES, k=randomness.randint(1, 8))
    return shared + "".join(chr(randomness.randint(*r)) for r in ranges)


def by_guava(windows: list[list[Segment]]) -> list[int]:
    lines = (" ".join(f"{s.crc}:{base64.b64encode(s.name.encode()).decode()}" for s in window) for window in windows)
    answer = subprocess.run(
        [find_java(), "-Xmx128m", "-cp", guava_classpath(), str(SOURCE)],
        input="\n".join(lines) + "\n", capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return [int(line) for line in answer.stdout.split()]


@pytest.mark.scenario("F1")
@pytest.mark.skipif(
    shutil.which("javac") is None, reason="launching a Java source file needs a JDK, here is only a JRE"
)
def test_a_thousand_random_windows_have_the_fingerprints_guava_gives_them() -> None:
    """INV-15: any JVM process can check ours. Sorting, encoding and hashing are all done a second time over there."""
    randomness = random.Random(20_140_105)
    windows = [random_window(randomness) for _ in range(WINDOWS)]
    assert any(sorted(s.name for s in w) != sorted((s.name for s in w), key=_utf16) for w in windows), (
        "no window tells Java's order from Python's"
    )
    assert [fingerprint(window).hash for window in windows] == by_guava(windows)


def _utf16(name: str) -> bytes:
    return name.encode("utf-16-be")
