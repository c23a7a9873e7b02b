"""Kafka's jars: fetched once, checked always, never half there."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from floodmark.core.errors import Unavailable
from floodmark.local.jars import KAFKA_VERSION, ensure_kafka_jars, kafka_classpath, pinned_sums, zookeeper_classpath

CONTENT = {"kafka_2.13-4.3.1.jar": b"broker", "kafka-clients-4.3.1.jar": b"clients"}
PINNED = {name: hashlib.sha256(data).hexdigest() for name, data in CONTENT.items()}


class Registry:
    """Stands in for the network: writes the jars it was given and counts how often it was asked."""

    def __init__(self, content: dict[str, bytes]) -> None:
        self.content = content
        self.asked = 0

    def __call__(self, into: Path) -> None:
        self.asked += 1
        for name, data in self.content.items():
            (into / name).write_bytes(data)


def ensure(cache: Path, registry: Registry, said: list[str] | None = None) -> Path:
    say = said.append if said is not None else lambda _: None
    return ensure_kafka_jars({"FLOODMARK_CACHE_DIR": str(cache)}, pinned=PINNED, resolve=registry, say=say)


def test_second_fetch_asks_no_registry(tmp_path: Path) -> None:
    """What is in the cache and matches its sums is used as it is."""
    registry = Registry(CONTENT)
    first, second = ensure(tmp_path, registry), ensure(tmp_path, registry)
    assert first == second == tmp_path / f"kafka-{KAFKA_VERSION}"
    assert registry.asked == 1


@pytest.mark.parametrize("damage", ["truncated", "removed", "added"])
def test_damaged_cache_is_fetched_again_and_the_jar_is_named(tmp_path: Path, damage: str) -> None:
    """A jar that is cut short, gone or foreign never gets into a class path."""
    registry = Registry(CONTENT)
    jars = ensure(tmp_path, registry)
    name = "stranger-1.0.jar" if damage == "added" else "kafka-clients-4.3.1.jar"
    if damage == "removed":
        (jars / name).unlink()
    else:
        (jars / name).write_bytes(b"cli")
    said: list[str] = []
    assert ensure(tmp_path, registry, said) == jars
    assert {jar.name: jar.read_bytes() for jar in jars.iterdir()} == CONTENT
    assert name in said[0]


def test_fetched_jar_with_another_sum_is_refused_by_name(tmp_path: Path) -> None:
    """A registry that serves something else than was pinned is not trusted, and leaves nothing in the cache."""
    registry = Registry({**CONTENT, "kafka-clients-4.3.1.jar": b"tampered"})
    with pytest.raises(Unavailable, match=r"kafka-clients-4\.3\.1\.jar has SHA-256 .*, pinned is"):
        ensure(tmp_path, registry)
    assert not list(tmp_path.glob("kafka-*/"))


def test_fetches_at_the_same_time_ask_the_registry_once(tmp_path: Path) -> None:
    """The others wait for the first and use what it brought."""
    registry = Registry(CONTENT)
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: ensure(tmp_path, registry), range(8)))
    assert found == {tmp_path / f"kafka-{KAFKA_VERSION}"}
    assert registry.asked == 1


def test_leftovers_of_a_killed_fetch_are_removed(tmp_path: Path) -> None:
    """A fetch killed with -9 cannot clean up; the next one does."""
    abandoned = tmp_path / f"kafka-{KAFKA_VERSION}.partial-x1"
    abandoned.mkdir(parents=True)
    ensure(tmp_path, Registry(CONTENT))
    assert not abandoned.exists()


def test_given_directory_is_used_without_any_fetch(tmp_path: Path) -> None:
    """Machines without a network bring their own jars."""
    (tmp_path / "kafka_2.13-4.3.1.jar").touch()
    assert ensure_kafka_jars({"FLOODMARK_KAFKA_JARS": str(tmp_path)}) == tmp_path


def test_given_directory_without_kafka_is_refused(tmp_path: Path) -> None:
    """The message names the variable and what the directory lacks."""
    with pytest.raises(Unavailable, match=r"FLOODMARK_KAFKA_JARS is .* has no kafka_2\.13"):
        ensure_kafka_jars({"FLOODMARK_KAFKA_JARS": str(tmp_path)})


def test_failing_resolver_says_what_to_do(tmp_path: Path) -> None:
    """A mirror that serves nothing: the reason is passed on, with the ways around it."""
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(
        f'<ivysettings><settings defaultResolver="mirror"/><resolvers><filesystem name="mirror">'
        f'<artifact pattern="{tmp_path}/[artifact]-[revision].[ext]"/></filesystem></resolvers></ivysettings>'
    )
    own = {"FLOODMARK_CACHE_DIR": str(tmp_path / "cache"), "FLOODMARK_IVY_SETTINGS": str(settings)}
    environ = {name: value for name, value in os.environ.items() if not name.startswith("FLOODMARK_")} | own
    with pytest.raises(Unavailable, match=r"(?s)kafka_2\.13.*FLOODMARK_KAFKA_JARS"):
        ensure_kafka_jars(environ)
    assert not list((tmp_path / "cache").glob("kafka-*/"))


def test_every_pin_is_a_sha256_of_a_jar() -> None:
    """The list in the package is complete enough to hold the broker and has no malformed line."""
    pins = pinned_sums()
    assert f"kafka_2.13-{KAFKA_VERSION}.jar" in pins
    assert all(name.endswith(".jar") and len(bytes.fromhex(digest)) == 32 for name, digest in pins.items())


def test_class_paths_hold_one_logging_each(tmp_path: Path) -> None:
    """Two bindings of slf4j would make the servers' logs a matter of luck."""
    for name in ("kafka_2.13-4.3.1.jar", "slf4j-api-1.7.36.jar", "log4j-core-2.25.4.jar"):
        (tmp_path / name).touch()
    for path in (zookeeper_classpath(), kafka_classpath(tmp_path)):
        names = [Path(jar).name for jar in path.split(":")]
        assert sum(name.startswith("slf4j-api-2") for name in names) == 1
        assert sum(name.startswith(("slf4j-api-1", "log4j-core-")) for name in names) == 1
