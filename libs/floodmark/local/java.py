"""Finding a Java that is new enough, and saying exactly what is wrong when there is none."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from floodmark.core.errors import Unavailable

JAVA_MAJOR_MIN = 17  # Kafka 4 brokers and Spark 4 both need it
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')  # "17.0.15", and "1.8.0_392" for Java 8


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """The `java` of JAVA_HOME, or else of PATH, once it has proved to be new enough."""
    java = _locate(environ)
    major = _major_version(java)
    if major < JAVA_MAJOR_MIN:
        raise Unavailable(
            f"Java {major} found at {java}, need {JAVA_MAJOR_MIN} or newer; install it or point JAVA_HOME to one"
        )
    return java


def _locate(environ: Mapping[str, str]) -> Path:
    home = environ.get("JAVA_HOME")
    if home and os.access(java := Path(home) / "bin" / "java", os.X_OK):
        return java
    if found := shutil.which("java", path=environ.get("PATH", os.defpath)):
        return Path(found)
    tried = f"JAVA_HOME ({home}) and PATH" if home else "PATH, and JAVA_HOME is not set"
    raise Unavailable(f"Java not found: no `java` in {tried}; install Java {JAVA_MAJOR_MIN} or newer")


def _major_version(java: Path) -> int:
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"java at {java} does not run: {error}") from error
    text = answer.stderr + answer.stdout
    match = _VERSION.search(text)
    if answer.returncode != 0 or match is None:
        raise Unavailable(f"java at {java} does not tell its version (exit code {answer.returncode}): {text.strip()}")
    return int(match[1])
