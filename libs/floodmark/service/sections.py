"""What a section of the settings is made of: frozen, every key known, and secrets that are never printed.

A secret stands in its own key or in a file: `password_file` names one, as containers mount them. What counts is the
whole file without the line break at its end; where a list is wanted, each line is one secret.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, FilePath, SecretStr, model_validator

FILE_SUFFIX = "_file"


class Section(BaseModel):
    # A refused value is not repeated: it may be a password with a typing error.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    @classmethod
    def keys(cls) -> set[str]:
        """Every key this section may have."""
        return {*cls.model_fields, *(f"{name}{FILE_SUFFIX}" for name in cls._secrets())}

    @classmethod
    def _secrets(cls) -> list[str]:
        return [name for name, field in cls.model_fields.items() if _is_secret(field.annotation)]

    @model_validator(mode="before")
    @classmethod
    def _read_secrets(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        values = dict(given)
        for name in cls._secrets():
            path = values.pop(f"{name}{FILE_SUFFIX}", None)
            if path is None:
                continue
            if name in values:
                raise ValueError(f"{name} and {name}{FILE_SUFFIX} exclude each other")
            text = _read(name, path)
            values[name] = text.splitlines() if get_origin(cls.model_fields[name].annotation) is tuple else text
        return values


def _is_secret(annotation: object) -> bool:
    """Options by name may hold secrets too, but no file could say which."""
    if get_origin(annotation) is dict:
        return False
    return annotation is SecretStr or any(_is_secret(part) for part in get_args(annotation))


def _read(name: str, path: object) -> str:
    try:
        text = Path(str(path)).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ValueError(f"{name}{FILE_SUFFIX} names {path}, which cannot be read: {reason}") from error
    if not text:
        raise ValueError(f"{name}{FILE_SUFFIX} names {path}, which is empty")
    return text


class SecuredSection(Section):
    """A server that may ask who we are, on a connection that may be private."""

    username: str = Field(default="", pattern=r"^[^:\s]*$", max_length=256)
    password: SecretStr | None = Field(default=None, min_length=1, max_length=1_024)
    tls: bool = False
    tls_ca: FilePath | None = Field(default=None, description="PEM; without it the machine's own authorities count")
    tls_cert: FilePath | None = Field(default=None, description="PEM: our certificate, where the server wants one")
    tls_key: FilePath | None = Field(default=None, description="PEM: its key")
    tls_key_password: SecretStr | None = None
    tls_check_hostname: bool = True

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if bool(self.username) != (self.password is not None):
            raise ValueError("username and password are given together or not at all")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key are given together or not at all")
        if self.tls_key_password is not None and self.tls_key is None:
            raise ValueError("tls_key_password is given without tls_key")
        unused = [name for name in ("tls_ca", "tls_cert") if getattr(self, name) is not None]
        if unused and not self.tls:
            raise ValueError(f"{unused[0]} is given, but the connection is in clear text; set tls = true")
        return self


def revealed(secret: SecretStr | None) -> str:
    return "" if secret is None else secret.get_secret_value()
