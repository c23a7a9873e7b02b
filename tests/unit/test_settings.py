"""Settings: what wins, what is refused, and in which words."""

import os
from pathlib import Path

import pytest
from pydantic import Field, ValidationError

from floodmark.core.errors import InvalidInput
from floodmark.service.settings import Section, ServiceSettings, load


class OwnSection(Section):
    threads_max: int = Field(default=4, ge=1, le=64)


class OwnSettings(ServiceSettings):
    ingester: OwnSection = OwnSection()


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("FLOODMARK_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "floodmark.toml"
    monkeypatch.setenv("FLOODMARK_CONFIG", str(path))
    return path


def refusal() -> str:
    with pytest.raises(InvalidInput) as caught:
        load(OwnSettings)
    assert caught.value.rule == "settings"
    return str(caught.value).removeprefix("settings: ")


def test_without_anything_the_defaults_reach_the_local_stack() -> None:
    """A service started by hand beside `make up` finds it."""
    settings = load(OwnSettings)
    assert settings.zookeeper.hosts == "127.0.0.1:2181"
    assert settings.kafka.bootstrap == "127.0.0.1:9092"


def test_the_environment_wins_over_the_file_key_by_key(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable replaces one key; the rest of its section still comes from the file."""
    file.write_text('[kafka]\nbootstrap = "file:1"\nreplication = 3\n[kafka.options]\n"security.protocol" = "SSL"\n')
    monkeypatch.setenv("FLOODMARK_KAFKA__BOOTSTRAP", "environment:2")
    kafka = load(OwnSettings).kafka
    assert (kafka.bootstrap, kafka.replication, kafka.options) == ("environment:2", 3, {"security.protocol": "SSL"})


def test_one_file_serves_all_services(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sections of other services are theirs to judge, in the file and in the environment."""
    file.write_text("[ingester]\nthreads_max = 2\n[worker]\nanything = true\n")
    monkeypatch.setenv("FLOODMARK_WORKER__ANYTHING", "true")
    assert load(OwnSettings).ingester.threads_max == 2


def test_settings_are_frozen() -> None:
    """What a service was started with is what it runs with."""
    with pytest.raises(ValidationError, match="frozen"):
        load(OwnSettings).kafka.replication = 2


@pytest.mark.parametrize(
    ("variable", "expected"),
    [
        ("FLOODMARK_KAFKA__BOOTSTRP", "is not a setting; did you mean FLOODMARK_KAFKA__BOOTSTRAP?"),
        ("FLOODMARK_KAFAK__BOOTSTRAP", "is not a setting; did you mean FLOODMARK_KAFKA__?"),
        ("FLOODMARK_INGESTER__THREAD_MAX", "is not a setting; did you mean FLOODMARK_INGESTER__THREADS_MAX?"),
        ("FLOODMARK_KAFKA_BOOTSTRAP", "is not a setting"),
        ("FLOODMARK_KAFKA", "is not a setting"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_nearest_right_one(
    monkeypatch: pytest.MonkeyPatch, variable: str, expected: str
) -> None:
    """A misspelt setting is a setting not made."""
    monkeypatch.setenv(variable, "x")
    assert refusal().startswith(f"{variable} {expected}")


def test_the_case_of_a_variable_does_not_hide_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower case is read like upper case, so it is checked like it."""
    monkeypatch.setenv("floodmark_kafka__bootstrp", "x")
    assert refusal().startswith("FLOODMARK_KAFKA__BOOTSTRP is not a setting")
    monkeypatch.delenv("floodmark_kafka__bootstrp")
    monkeypatch.setenv("floodmark_kafka__bootstrap", "lower:1")
    assert load(OwnSettings).kafka.bootstrap == "lower:1"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('[kafka]\nbootstrp = "x"\n', "{path}: [kafka] bootstrp is not a setting; did you mean bootstrap?"),
        ("[ingestor]\n", "{path} has an unknown section [ingestor]; did you mean ingester?"),
        ("kafka = 3\n", "{path} has kafka = 3, but [kafka] is a section"),
        ("[kafka\n", "{path} is not TOML: "),
        ("[ingester]\nthreads_max = 65\n", "ingester.threads_max: Input should be less than or equal to 64"),
        (
            "[kafka]\nsession_timeout_ms = 9000\npoll_interval_max_ms = 8000\n",
            "kafka: Value error, session_timeout_ms must not exceed poll_interval_max_ms",
        ),
    ],
)
def test_a_wrong_file_is_refused_naming_the_key_and_the_rule(file: Path, text: str, expected: str) -> None:
    """Whoever reads the sentence knows what to change, and where."""
    file.write_text(text)
    assert refusal().startswith(expected.format(path=file))


def test_a_file_that_cannot_be_read_is_named(file: Path) -> None:
    """The variable that named it is part of the sentence."""
    assert refusal() == f"FLOODMARK_CONFIG names {file}, which cannot be read: No such file or directory"
