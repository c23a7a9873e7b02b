"""From the bytes of a value to a message, or to a refusal that names the rule, the field and what was found."""

from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from floodmark.contracts.fields import INT64, NAME
from floodmark.contracts.messages import Message
from floodmark.contracts.topics import ALL_TOPICS, Topic
from floodmark.core.errors import InvalidInput
from floodmark.core.names import name_refusal

_MODELS: dict[str, type[Message]] = {model.kind_name(): model for topic in ALL_TOPICS for model in topic.models}

# A refusal ends up in a log line and in a dead letter; the sender decides how much is wrong.
_COMPLAINTS_MAX = 5
_SHOWN_CHARS_MAX = 80


class _Tagged(BaseModel):
    """The tag alone, read before anything else is judged."""

    kind: Any = None


def parse(topic: Topic, value: bytes | None, *, what: object) -> Message:
    """The message in `value`. `what` names its origin for the refusal, such as "record tasks.v1/3/17"."""
    return _read_at_once(topic, value) or _read_in_steps(topic, value, what)


def _read_at_once(topic: Topic, value: bytes | None) -> Message | None:
    """The message when nothing is wrong with it, as with nearly all; what is wrong is found out step by step."""
    if value is None or len(value) > topic.value_bytes_max:
        return None
    for model in topic.models:
        try:
            # What `model_validate_json` calls, without its many arguments: they would take a tenth of the time.
            message: Message = model.__pydantic_validator__.validate_json(value.decode("utf-8"))
        except ValueError:  # not UTF-8, or not this message
            continue
        if "kind" in message.model_fields_set:  # in Python a message knows its kind; on the wire it must be said
            return message
    return None


def _read_in_steps(topic: Topic, value: bytes | None, what: object) -> Message:
    text = _text(topic, value, what)
    kind = _kind(text, what)
    if not isinstance(kind, str) or kind not in _MODELS:
        raise InvalidInput("unknown-kind", f"{what} has kind {_shown(kind)}, {topic.name} takes {_listed(topic)}")
    if kind not in topic.kinds:
        raise InvalidInput("wrong-kind-for-topic", f"{what} has kind {kind!r}, {topic.name} takes {_listed(topic)}")
    try:
        return _MODELS[kind].model_validate_json(text)
    except ValidationError as error:
        raise InvalidInput("schema", f"{what} is no {kind}: {complaints(error)}") from error


def complaints(error: ValidationError) -> str:
    """Each broken rule with the field that broke it, the first few in full."""
    details = error.errors(include_url=False)
    faulty = {detail["loc"][:depth] for detail in details for depth in range(len(detail["loc"]))}
    # Pydantic also calls a list too short when its items are refused, which is not what is wrong with it.
    details = [detail for detail in details if detail["type"] != "too_short" or detail["loc"] not in faulty]
    lines = []
    for detail in details[:_COMPLAINTS_MAX]:
        field = ".".join(str(step) for step in detail["loc"]) or "message"
        found = detail["input"]
        # A missing field or a rule between fields has the whole object as its input: the rule has said enough.
        shown = "" if isinstance(found, dict) else f", got {_shown(found)}"
        lines.append(f"{field[:_SHOWN_CHARS_MAX]}: {_rule(detail)}{shown}")
    if len(details) > _COMPLAINTS_MAX:
        lines.append(f"and {len(details) - _COMPLAINTS_MAX} more")
    return "; ".join(lines)


def _rule(detail: ErrorDetails) -> str:
    if detail["type"] == "value_error":
        return str(detail["ctx"]["error"])
    if detail["type"] == "string_pattern_mismatch" and detail["ctx"]["pattern"] == NAME:
        return str(name_refusal(detail["input"]))  # the one pattern that has a rule in words
    if detail["type"] == INT64 and not isinstance(detail["input"], str):
        return "Input should be a valid integer"
    return detail["msg"]


def _text(topic: Topic, value: bytes | None, what: object) -> str:
    if value is None:
        raise InvalidInput("value-missing", f"{what} has no value")
    if len(value) > topic.value_bytes_max:
        limit = f"{topic.name} takes at most {topic.value_bytes_max}"
        raise InvalidInput("too-large", f"{what} has a value of {len(value)} bytes, {limit}")
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput("not-utf8", f"{what} is not UTF-8 at byte {error.start}") from error


def _kind(text: str, what: object) -> object:
    try:
        return _Tagged.model_validate_json(text).kind
    except ValidationError as error:
        detail = error.errors(include_url=False)[0]
        if detail["type"] != "json_invalid":
            raise InvalidInput("schema", f"{what} is JSON but not an object") from error
        # The parser bounds its own depth, so hostile nesting ends here and not in a RecursionError.
        rule = "too-deep" if "recursion limit" in detail["msg"] else "not-json"
        raise InvalidInput(rule, f"{what}: {detail['msg']}") from error


def _listed(topic: Topic) -> str:
    return " or ".join(topic.kinds)


def _shown(found: object) -> str:
    text = repr(found)
    return text if len(text) <= _SHOWN_CHARS_MAX else f"{text[:_SHOWN_CHARS_MAX]}..."
