"""Settings: what wins, what is refused, and in which words."""

import os
import traceback
from pathlib import Path

import pytest
from pydantic import Field, SecretStr, ValidationError

from floodmark.bus.kafka import KafkaConnection, KafkaPublisher, KafkaSource
from floodmark.bus.options import RESERVED
from floodmark.core.errors import InvalidInput
from floodmark.service.sections import Section
from floodmark.service.settings import KafkaSettings, ServiceSettings, load
from floodmark_broker.config import BrokerSettings


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
    assert (kafka.bootstrap, kafka.replication) == ("environment:2", 3)
    assert kafka.client_options == {"security.protocol": "SSL"}


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


# -- secrets -----------------------------------------------------------------------------------------------------------

SECRET = "correct horse battery staple"


def set_all(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"FLOODMARK_{name}", value)


def test_a_secret_is_read_from_the_file_that_a_container_mounts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line break that an editor puts at the end is not part of it."""
    mounted = tmp_path / "password"
    mounted.write_text(f"{SECRET}\n")
    set_all(monkeypatch, KAFKA__USERNAME="floodmark", KAFKA__PASSWORD_FILE=str(mounted))
    set_all(monkeypatch, ZOOKEEPER__USERNAME="floodmark", ZOOKEEPER__PASSWORD_FILE=str(mounted))
    settings = load(OwnSettings)
    assert settings.kafka.client_options["sasl.password"] == SECRET
    assert settings.zookeeper.access.credentials() == [("digest", f"floodmark:{SECRET}")]


def test_a_file_names_the_file_of_a_secret_too(file: Path, tmp_path: Path) -> None:
    """The TOML file may lie in a repository; the secret does not."""
    mounted = tmp_path / "password"
    mounted.write_text(SECRET)
    file.write_text(f'[kafka]\nusername = "floodmark"\npassword_file = "{mounted}"\n')
    assert load(OwnSettings).kafka.client_options["sasl.password"] == SECRET


def test_tokens_are_read_from_a_file_one_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second line is the next token, so that one can be changed without a moment in which none is right."""
    mounted = tmp_path / "tokens"
    mounted.write_text(f"{SECRET}\n{SECRET[::-1]}\n")
    set_all(monkeypatch, BROKER__ADMIN_TOKENS_FILE=str(mounted))
    tokens = load(BrokerSettings).broker.admin_tokens
    assert [token.get_secret_value() for token in tokens] == [SECRET, SECRET[::-1]]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"KAFKA__PASSWORD": SECRET}, "kafka: Value error, username and password are given together or not at all"),
        ({"KAFKA__USERNAME": "u"}, "kafka: Value error, username and password are given together or not at all"),
        ({"ZOOKEEPER__USERNAME": "a:b", "ZOOKEEPER__PASSWORD": SECRET}, "zookeeper.username: String should match"),
        ({"KAFKA__PASSWORD": SECRET, "KAFKA__PASSWORD_FILE": "/x"}, "kafka: Value error, password and password_file"),
        (
            {"KAFKA__PASSWORD_FILE": "/no/such/file"},
            "kafka: Value error, password_file names /no/such/file, which cann",
        ),
        ({"KAFKA__PASSWORD_FILE": "/dev/null"}, "kafka: Value error, password_file names /dev/null, which is empty"),
        ({"KAFKA__PASSWORT_FILE": "/x"}, "FLOODMARK_KAFKA__PASSWORT_FILE is not a setting; did you mean FLOODMARK_KAF"),
        ({"KAFKA__BOOTSTRAP_FILE": "/x"}, "FLOODMARK_KAFKA__BOOTSTRAP_FILE is not a setting"),
        ({"ZOOKEEPER__TLS_CA": __file__}, "zookeeper: Value error, tls_ca is given, but the connection is in clear te"),
        ({"ZOOKEEPER__TLS": "1", "ZOOKEEPER__TLS_CA": "/no/such/file"}, "zookeeper.tls_ca: Path does not point to a f"),
        ({"KAFKA__TLS": "1", "KAFKA__TLS_CERT": __file__}, "kafka: Value error, tls_cert and tls_key are given togeth"),
        ({"KAFKA__OPTIONS": SECRET}, 'error parsing value for field "kafka" from source'),
        ({"KAFKA__OPTIONS": f'{{"sasl.password": ["{SECRET}"]}}'}, "kafka.options.sasl.password: Input should be a"),
    ],
)
def test_settings_that_do_not_fit_are_refused_and_no_secret_is_repeated(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    """Neither in the sentence nor in the error behind it, which a traceback would print."""
    set_all(monkeypatch, **variables)
    with pytest.raises(InvalidInput) as caught:
        load(OwnSettings)
    assert str(caught.value).removeprefix("settings: ").startswith(expected)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_section_by_itself_repeats_no_secret_either() -> None:
    """The command line builds on sections, without the class around them."""
    with pytest.raises(ValidationError) as caught:
        KafkaSettings(username="a b", password=SecretStr(SECRET), options={"sasl.password": [SECRET]})  # type: ignore[dict-item]
    assert SECRET not in str(caught.value)


def test_no_form_of_the_settings_shows_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever prints, logs or dumps the settings, or what is handed down from them, prints none."""
    set_all(monkeypatch, KAFKA__USERNAME="u", KAFKA__PASSWORD=SECRET, BROKER__READ_TOKENS=f'["{SECRET}"]')
    set_all(monkeypatch, ZOOKEEPER__USERNAME="u", ZOOKEEPER__PASSWORD=SECRET)
    set_all(monkeypatch, ZOOKEEPER__TLS="true", ZOOKEEPER__TLS_CERT=__file__, ZOOKEEPER__TLS_KEY=__file__)
    set_all(monkeypatch, ZOOKEEPER__TLS_KEY_PASSWORD=SECRET, KAFKA__OPTIONS=f'{{"x": "{SECRET}"}}')
    set_all(monkeypatch, SPARK__OPTIONS=f'{{"spark.hadoop.fs.s3a.secret.key": "{SECRET}"}}')
    settings = load(BrokerSettings)
    connection = KafkaConnection("h:1", "c", settings.kafka.client_options)
    assert SECRET in settings.kafka.client_options.values()
    assert settings.zookeeper.access.password == settings.zookeeper.access.key_password == SECRET
    for form in (settings, settings.kafka, settings.zookeeper.access, connection):
        assert SECRET not in f"{form!r} {form}"
    assert SECRET not in settings.model_dump_json(exclude={"spark"})


@pytest.mark.parametrize(
    ("variables", "protocol"),
    [
        ({}, None),
        ({"KAFKA__TLS": "true"}, "ssl"),
        ({"KAFKA__USERNAME": "u", "KAFKA__PASSWORD": "p"}, "sasl_plaintext"),
        ({"KAFKA__USERNAME": "u", "KAFKA__PASSWORD": "p", "KAFKA__TLS": "true"}, "sasl_ssl"),
    ],
)
def test_the_security_protocol_follows_from_the_login_and_tls(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], protocol: str | None
) -> None:
    """There is no third setting that could contradict them."""
    set_all(monkeypatch, **variables)
    assert load(OwnSettings).kafka.client_options.get("security.protocol") == protocol


def test_everything_about_tls_reaches_librdkafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """A certificate that was given and not used would be noticed as a refusal by the broker, without a reason."""
    set_all(monkeypatch, KAFKA__TLS="true", KAFKA__TLS_CA=__file__, KAFKA__TLS_CERT=__file__, KAFKA__TLS_KEY=__file__)
    set_all(monkeypatch, KAFKA__TLS_KEY_PASSWORD=SECRET, KAFKA__TLS_CHECK_HOSTNAME="false")
    assert load(OwnSettings).kafka.client_options == {
        "security.protocol": "ssl",
        "ssl.ca.location": __file__,
        "ssl.certificate.location": __file__,
        "ssl.key.location": __file__,
        "ssl.key.password": SECRET,
        "ssl.endpoint.identification.algorithm": "none",
    }


@pytest.mark.parametrize("key", ["enable.auto.commit", "acks", "group.id", "auto.offset.reset", "security.protocol"])
def test_an_option_that_this_project_decides_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    """It would be overruled without a word, or make the system wrong."""
    set_all(monkeypatch, KAFKA__TLS="true", KAFKA__OPTIONS=f'{{"{key}": "x"}}')
    assert f" {key}" in refusal()


def test_every_option_that_the_clients_set_themselves_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Read off the clients, so that a setting added there cannot be forgotten in the list."""
    configs: list[dict[str, object]] = []
    for client in ("Consumer", "Producer"):
        monkeypatch.setattr(f"floodmark.bus.kafka.{client}", configs.append)
    connection = KafkaConnection("h:1", "c")
    KafkaSource(connection, group="g", session_timeout_ms=6_000, poll_interval_max_ms=6_000)
    KafkaPublisher(connection)
    common = {"reconnect.backoff.max.ms", "log_level"}  # what a site may choose otherwise, and then it is so
    decided = {key for config in configs for key in config if "." in key} - common
    assert len(decided) > 15
    assert decided <= RESERVED.keys()
