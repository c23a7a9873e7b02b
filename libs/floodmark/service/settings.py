"""Settings: one frozen class for each service, from a TOML file and the environment, every number bounded.

One file serves all services: each reads the shared sections and its own, and leaves its neighbours' alone.
The environment wins over the file: `FLOODMARK_KAFKA__BOOTSTRAP` is `bootstrap` in section `[kafka]`.
A secret may stand in a file of its own: `FLOODMARK_KAFKA__PASSWORD_FILE` names it.
An unknown section or key is refused, wherever it stands, because a misspelt setting is a setting not made.
"""

import difflib
import os
import socket
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from floodmark.bus.options import check_options
from floodmark.core.errors import InvalidInput
from floodmark.ledger.access import Access
from floodmark.service.sections import Section, SecuredSection, revealed

PREFIX = "FLOODMARK_"
SERVICE_SECTIONS = ("ingester", "consistency", "scheduler", "worker", "broker", "janitor", "spark")
TOOL_VARIABLES = (
    "FLOODMARK_CONFIG", "FLOODMARK_CACHE_DIR", "FLOODMARK_KAFKA_JARS", "FLOODMARK_IVY_SETTINGS", "FLOODMARK_TOKEN",
    "FLOODMARK_TOKEN_FILE",
)  # fmt: skip

Port = Annotated[int, Field(ge=0, le=65_535)]
DurationMs = Annotated[int, Field(ge=1, le=24 * 60 * 60 * 1000)]


class ZooKeeperSettings(SecuredSection):
    hosts: str = Field(default="127.0.0.1:2181", min_length=1, description="comma-separated host:port")
    session_timeout_ms: DurationMs = Field(default=10_000, ge=1_000, description="after this silence others take over")
    connect_timeout_ms: DurationMs = Field(default=30_000, description="give up starting after this long")

    @property
    def access(self) -> Access:
        return Access(
            username=self.username,
            password=revealed(self.password),
            tls=self.tls,
            ca=self.tls_ca,
            cert=self.tls_cert,
            key=self.tls_key,
            key_password=revealed(self.tls_key_password),
            check_hostname=self.tls_check_hostname,
        )


class KafkaSettings(SecuredSection):
    bootstrap: str = Field(default="127.0.0.1:9092", min_length=1, description="comma-separated host:port")
    session_timeout_ms: DurationMs = Field(default=10_000, ge=1_000)
    poll_interval_max_ms: DurationMs = Field(default=300_000, ge=1_000)
    delivery_timeout_ms: DurationMs = Field(default=30_000, ge=1_000)
    replication: int = Field(default=1, ge=1, le=9, description="of topics this project creates")
    namespace: str = Field(default="", pattern=r"^[a-z0-9_-]{0,60}$", description="before every topic and group")
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    options: dict[str, SecretStr] = Field(default_factory=dict, description="passed to librdkafka as they are")

    @model_validator(mode="after")
    def _timeouts_fit(self) -> Self:
        if self.session_timeout_ms > self.poll_interval_max_ms:
            raise ValueError("session_timeout_ms must not exceed poll_interval_max_ms")
        return self

    @model_validator(mode="after")
    def _options_fit(self) -> Self:
        try:
            check_options(self.options)
        except InvalidInput as refusal:
            raise ValueError(str(refusal)) from refusal
        if twice := sorted(self.options.keys() & self._security().keys()):
            raise ValueError(f"options has {twice[0]}, which the settings beside it say already")
        return self

    @property
    def client_options(self) -> dict[str, str]:
        """What librdkafka is told beside what this project sets for every client."""
        return {name: value.get_secret_value() for name, value in self.options.items()} | self._security()

    def _security(self) -> dict[str, str]:
        options = {}
        if self.username or self.tls:
            options["security.protocol"] = ("sasl_" if self.username else "") + ("ssl" if self.tls else "plaintext")
        if self.username:
            options |= {"sasl.mechanism": self.sasl_mechanism, "sasl.username": self.username}
            options["sasl.password"] = revealed(self.password)
        if self.tls:
            options["ssl.endpoint.identification.algorithm"] = "https" if self.tls_check_hostname else "none"
            options |= {"ssl.ca.location": str(self.tls_ca)} if self.tls_ca else {}
        if self.tls_cert:
            options |= {"ssl.certificate.location": str(self.tls_cert), "ssl.key.location": str(self.tls_key)}
            options |= {"ssl.key.password": revealed(self.tls_key_password)} if self.tls_key_password else {}
        return options


class SparkSettings(Section):
    """For the services that run Spark: worker and broker."""

    master: str = Field(default="local[*]", min_length=1, description="local[*], spark://host:port, yarn, k8s://...")
    options: dict[str, str] = Field(default_factory=dict, repr=False, description="any Spark setting, by its full name")


class HttpSettings(Section):
    host: str = "127.0.0.1"
    port: Port = Field(default=0, description="0 takes a free one and logs it")
    connections_max: int = Field(default=512, ge=8, le=10_000, description="clients at once; more are told 503")


class LogSettings(Section):
    format: Literal["auto", "json", "console"] = Field(default="auto", description="auto: console on a terminal")
    level: Literal["debug", "info", "warning", "error"] = "info"


class RuntimeSettings(Section):
    replica: str = Field(default_factory=socket.gethostname, pattern=r"^[A-Za-z0-9._-]{1,120}$")
    grace_ms: DurationMs = Field(default=20_000, description="how long running work may take after a stop signal")
    step_age_max_ms: DurationMs = Field(
        default=60_000, description="/healthz fails when the loop stood still this long"
    )


class ServiceSettings(BaseSettings):
    """What all services share. A service adds a section named after itself."""

    model_config = SettingsConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, env_prefix=PREFIX, env_nested_delimiter="__"
    )

    zookeeper: ZooKeeperSettings = ZooKeeperSettings()
    kafka: KafkaSettings = KafkaSettings()
    http: HttpSettings = HttpSettings()
    log: LogSettings = LogSettings()
    runtime: RuntimeSettings = Field(default_factory=RuntimeSettings)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        del settings_cls, dotenv_settings, file_secret_settings
        return env_settings, init_settings  # what stands first wins; init holds the file


S = TypeVar("S", bound=ServiceSettings)


def load(settings: type[S], path: str | None = None) -> S:
    """Read the settings, or raise InvalidInput naming the key that is wrong and the rule it breaks."""
    path = path or os.environ.get("FLOODMARK_CONFIG")
    _check_environment(settings)
    file = _own_sections(settings, _read_toml(path), path) if path else {}
    try:
        return settings(**file)
    except ValidationError as error:
        lines = [f"{'.'.join(str(part) for part in e['loc'])}: {e['msg']}" for e in error.errors()]
        raise InvalidInput("settings", "; ".join(lines)) from error
    except SettingsError as error:
        raise InvalidInput("settings", f"{error}: lists and tables are written as JSON there") from error


def _read_toml(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(
            "settings", f"FLOODMARK_CONFIG names {path}, which cannot be read: {error.strerror}"
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput("settings", f"{path} is not TOML: {error}") from error


def _own_sections(settings: type[ServiceSettings], file: dict[str, Any], path: str) -> dict[str, Any]:
    known = {*settings.model_fields, *SERVICE_SECTIONS}
    for name in file:
        if name not in known:
            raise InvalidInput("settings", f"{path} has an unknown section [{name}]{_did_you_mean(name, known)}")
    own = {name: section for name, section in file.items() if name in settings.model_fields}
    for name, section in own.items():
        if not isinstance(section, dict):
            raise InvalidInput("settings", f"{path} has {name} = {section!r}, but [{name}] is a section")
        _check_section(section, _keys(settings.model_fields[name].annotation), f"{path}: [{name}]")
    return own


def _check_section(section: dict[str, Any], known: set[str], where: str) -> None:
    for key in section:
        if key not in known:
            raise InvalidInput("settings", f"{where} {key} is not a setting{_did_you_mean(key, known)}")


def _check_environment(settings: type[ServiceSettings]) -> None:
    for variable in (name.upper() for name in os.environ):  # as read: pydantic does not mind the case
        if not variable.startswith(PREFIX) or variable in TOOL_VARIABLES:
            continue
        section, _, key = variable.removeprefix(PREFIX).lower().partition("__")
        own = settings.model_fields.get(section)
        if own is None and section not in SERVICE_SECTIONS:
            known = {f"{PREFIX}{s}__".upper() for s in (*settings.model_fields, *SERVICE_SECTIONS)} | set(
                TOOL_VARIABLES
            )
            raise InvalidInput("settings", f"{variable} is not a setting{_did_you_mean(variable, known)}")
        if own is not None and key.partition("__")[0] not in _keys(own.annotation):
            known = {f"{PREFIX}{section}__{k}".upper() for k in _keys(own.annotation)}
            raise InvalidInput("settings", f"{variable} is not a setting{_did_you_mean(variable, known)}")


def _keys(annotation: object) -> set[str]:
    assert isinstance(annotation, type), f"{annotation} is not a section"
    assert issubclass(annotation, Section), f"{annotation} is not a section"
    return annotation.keys()


def _did_you_mean(name: str, known: set[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
