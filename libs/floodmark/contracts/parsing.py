"""From the bytes of a value to a message, or to a refusal that names the rule, the field and what was found."""

from typing import Any

from pydantic import BaseModel, ValidationError

from floodmark.contracts.messages import Message
from floodmark.contracts.topics import ALL_TOPICS, Topic
from floodmark.core.errors import InvalidInput

_MODELS: dict[str, type[Message]] = {model.kind_name(): model for topic in ALL_TOPICS for model in topic.models}

# A refusal ends up in a log line and in a dead letter; the sender decides how much is wrong.
_COMPLAINTS_MAX = 5
_SHOWN_CHARS_MAX = 80


class _Tagged(BaseModel):
    """The tag alone, read before anything else is judged."""

    kind: Any = None


def parse(topic: Topic, value: bytes | None, *, what: str) -> Message:
    """The message in `value`. `what` names its origin for the refusal, such as "record tasks.v1/3/17"."""
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
        rule = str(detail["ctx"]["error"]) if detail["type"] == "value_error" else detail["msg"]
        found = detail["input"]
        # A missing field or a rule between fields has the whole object as its input: the rule has said enough.
        shown = "" if isinstance(found, dict) else f", got {_shown(found)}"
        lines.append(f"{field[:_SHOWN_CHARS_MAX]}: {rule}{shown}")
    if len(details) > _COMPLAINTS_MAX:
        lines.append(f"and {len(details) - _COMPLAINTS_MAX} more")
    return "; ".join(lines)


def _text(topic: Topic, value: bytes | None, what: str) -> str:
    if value is None:
        raise InvalidInput("value-missing", f"{what} has no value")
    if len(value) > topic.value_bytes_max:
        limit = f"{topic.name} takes at most {topic.value_bytes_max}"
        raise InvalidInput("too-large", f"{what} has a value of {len(value)} bytes, {limit}")
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput("not-utf8", f"{what} is not UTF-8 at byte {error.start}") from error


def _kind(text: str, what: str) -> object:
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
