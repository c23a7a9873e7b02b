"""Is it Spark that is gone, or has this work failed? Decided by what Spark is, never by what it says (K11)."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from floodmark.core.errors import EngineLost, InvalidInput, Unavailable
from floodmark.service.stop import ExitCode, StopToken
from floodmark.spark.liveness import Liveness
from floodmark.spark.session import java_options
from floodmark_broker.app import Broker
from floodmark_broker.pages import _told
from floodmark_worker.app import Stopping, Worker

pytestmark = pytest.mark.scenario("K11")


class PlayedSpark:
    """A session whose JVM has ended with `exit_code`, or answers as `answers` does when it is asked."""

    def __init__(self, exit_code: int | None = None, answers: Callable[[], bool] = lambda: False) -> None:
        self.exit_code = exit_code
        self.answers = answers
        java = SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: self.answers()))  # noqa: PLW0108 - a test changes it
        gateway = SimpleNamespace(proc=SimpleNamespace(poll=lambda: self.exit_code))
        self.sparkContext = SimpleNamespace(_gateway=gateway, _jsc=java)

    @property
    def liveness(self) -> Liveness:
        return Liveness(self)  # type: ignore[arg-type]


def refusing(error: Exception) -> Callable[[], bool]:
    def answers() -> bool:
        raise error

    return answers


def failing(liveness: Liveness, error: Exception) -> Exception:
    """What work that fails with this error fails with."""
    with pytest.raises(Exception) as caught, liveness.required():  # noqa: PT011 - which one is what is asked
        raise error
    return caught.value


def test_a_jvm_that_has_exited_is_seen_without_asking_it() -> None:
    spark = PlayedSpark(answers=refusing(AssertionError("asked")))
    liveness = spark.liveness
    assert liveness.lost() is None
    spark.exit_code = -9
    assert liveness.lost() == "its JVM ended with exit code -9"
    with pytest.raises(EngineLost, match="exit code -9"), liveness.required():
        pytest.fail("work began without a Spark")


@pytest.mark.parametrize(
    ("spark", "why"),
    [
        (PlayedSpark(exit_code=3), "exit code 3"),
        (PlayedSpark(answers=lambda: True), "context was stopped"),
        (PlayedSpark(answers=refusing(Py4JNetworkError("empty"))), "does not answer"),
        (PlayedSpark(answers=refusing(Py4JError("out of memory"))), "does not answer"),
        (PlayedSpark(answers=refusing(ConnectionRefusedError())), "does not answer"),
    ],
)
@pytest.mark.parametrize("error", [EOFError(), RuntimeError("reentrant call"), InvalidInput("query-failed", "so")])
def test_whatever_fails_on_a_spark_that_is_gone_is_nobodys_fault(
    spark: PlayedSpark, why: str, error: Exception
) -> None:
    liveness = spark.liveness
    spark.exit_code, exits = None, spark.exit_code  # it begins while Spark is there

    def fail() -> None:
        spark.exit_code = exits
        raise error

    with pytest.raises(EngineLost, match=why) as caught, liveness.required():
        fail()
    assert caught.value.__cause__ is error
    assert isinstance(caught.value, Unavailable)


def test_a_context_that_python_has_stopped_is_gone() -> None:
    spark = PlayedSpark()
    liveness = spark.liveness
    spark.sparkContext._jsc = None
    liveness.look()
    assert liveness.lost() == "its context was stopped"


@pytest.mark.parametrize("error", [Py4JNetworkError("of the past"), EOFError(), ValueError("the work itself")])
def test_what_fails_on_a_spark_that_is_there_fails_as_it_did(error: Exception) -> None:
    """Its type and words do not matter: Spark answers, so it was this work."""
    liveness = PlayedSpark().liveness
    assert failing(liveness, error) is error
    assert liveness.lost() is None


def test_once_lost_it_stays_lost() -> None:
    spark = PlayedSpark(answers=lambda: True)
    liveness = spark.liveness
    liveness.look()
    spark.answers = lambda: False
    liveness.look()
    assert liveness.lost() is not None


@pytest.mark.parametrize("options", [{}, {"spark.driver.extraJavaOptions": "-Dmine=1"}])
def test_a_jvm_out_of_memory_ends(options: dict[str, str]) -> None:
    """In one heap with everything else, nobody knows what was hit: better no JVM than half of one."""
    given = options.get("spark.driver.extraJavaOptions", "-Dlog4j2")
    assert "-XX:+ExitOnOutOfMemoryError" in java_options(options).split()
    assert given in java_options(options)


# -- the services ------------------------------------------------------------------------------------------------------


def _nothing() -> Any:
    return SimpleNamespace(step=lambda: pytest.fail("a service without an engine went on"))


def _services(liveness: Liveness, stop: StopToken) -> list[Any]:
    worker = Worker(_nothing(), _nothing(), _nothing(), _nothing(), liveness, Stopping(), stop, _nothing())
    return [worker, Broker(_nothing(), _nothing(), liveness, stop, _nothing())]


@pytest.mark.parametrize("number", [0, 1])
def test_a_service_without_its_engine_asks_to_end_and_takes_nothing_new(number: int) -> None:
    stop = StopToken()
    service = _services(PlayedSpark(exit_code=-9).liveness, stop)[number]
    assert service.step() == 0
    assert stop.reason is not None
    assert (stop.reason.code, "exit code -9" in stop.reason.why) == (ExitCode.ENGINE_LOST, True)


def test_a_query_without_an_engine_is_told_to_come_back() -> None:
    answer = _told(EngineLost("Spark is gone"))
    assert (answer.status, answer.headers) == (503, {"Retry-After": "1"})
