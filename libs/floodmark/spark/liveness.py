"""Whether the Spark of this process is still there.

A JVM that was killed, ran out of memory or stopped its context never comes back, and nothing that was running then is
to blame. Whatever Spark says in its last moments depends on where the caller stood: a refused connection, an empty
answer, half a result, "SparkContext was shut down". So no message is read. What failed is held against Spark itself:
has its process exited, does it answer, does its context run?
"""

from collections.abc import Iterator
from contextlib import contextmanager
from subprocess import Popen

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from floodmark.core.errors import EngineLost


class Liveness:
    """Watches the Spark of one session. Once lost, it stays lost."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = spark.sparkContext
        self._jvm: Popen[bytes] | None = getattr(self._context._gateway, "proc", None)
        """None where another process has started it; then only its answers tell."""
        self._lost: str | None = None

    def lost(self) -> str | None:
        """Why Spark is gone, as far as it can be told without asking it; None while it seems to be there.

        Costs one system call and never waits, so a loop and a health check may ask it every time.
        """
        if self._lost is None and self._jvm is not None and (code := self._jvm.poll()) is not None:
            self._lost = f"its JVM ended with exit code {code}"
        return self._lost

    def look(self) -> None:
        """Ask Spark itself. A context may end while its JVM goes on, and a JVM may be there and no longer answer."""
        if self.lost() is not None:
            return
        try:
            context = self._context._jsc
            if context is None or context.sc().isStopped():
                self._lost = "its context was stopped"
        except (Py4JError, OSError) as error:
            self._lost = self.lost() or f"its JVM does not answer: {type(error).__name__}"

    @contextmanager
    def required(self) -> Iterator[None]:
        """For work that needs Spark. What fails because Spark is gone raises EngineLost; the rest is left alone."""
        self._refuse_if_lost()
        try:
            yield
        except Exception as error:
            self.look()
            self._refuse_if_lost(error)
            raise

    def _refuse_if_lost(self, cause: Exception | None = None) -> None:
        if why := self.lost():
            raise EngineLost(f"Spark is gone, and this process ends for another to begin: {why}") from cause
