"""What the two Java servers share: how their command line and their logging look."""

from pathlib import Path

from floodmark.local.files import write_atomically
from floodmark.local.java import find_java

_LOG4J = """\
# Everything goes to standard output, which the stack appends to one file.
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yyyy-MM-dd'T'HH:mm:ss.SSSXXX} %-5p %c{1} - %m%n%throwable
rootLogger.level = info
rootLogger.appenderRef.console.ref = console
"""
_LOG4J_NAME = "log4j2.properties"


def write_logging(home: Path) -> None:
    write_atomically(home / _LOG4J_NAME, _LOG4J)


def java_command(*, classpath: str, main: str, arguments: list[str], heap_mb: int) -> list[str]:
    """Runs in the home that `write_logging` prepared: log4j reads a path as a list of URIs, a bare name is safe."""
    return [
        str(find_java()),
        f"-Xmx{heap_mb}m",
        "-XX:+ExitOnOutOfMemoryError",  # the supervisor restarts a dead server; a half-dead one helps nobody
        "-Djava.awt.headless=true",
        "-Djava.net.preferIPv4Stack=true",
        f"-Dlog4j2.configurationFile={_LOG4J_NAME}",
        "-cp",
        classpath,
        main,
        *arguments,
    ]
