"""The AsyncAPI 3.0 document of the topics, for people and tools that connect something of their own."""

from typing import Any

from floodmark.contracts.messages import Message
from floodmark.contracts.topics import ALL_TOPICS, Topic

Json = dict[str, Any]

_KAFKA_BINDING_VERSION = "0.5.0"
_DESCRIPTION = (
    "What travels between the services of Floodmark. Values are JSON, attributes are CloudEvents 1.0 in binary mode. "
    "Records without any header are accepted too."
)
_HEADER_DESCRIPTIONS = {
    "ce_specversion": "1.0",
    "ce_id": "the event's id",
    "ce_source": "the sender",
    "ce_type": "the message's kind, as in the value",
    "ce_time": "when the event was made, RFC 3339",
    "ce_subject": "what the message is about: the record's key",
    "ce_traceparent": "W3C trace context; the trace id is carried on to every message sent because of this one",
    "content-type": "application/json",
}


def schema_path(topic: Topic, kind: str) -> str:
    """Where the JSON Schema of a kind lies, relative to `schemas/`: one folder for each topic and version."""
    return f"{folder(topic)}/{kind}.schema.json"


def folder(topic: Topic) -> str:
    base, _, version = topic.name.rpartition(".")
    return f"{base}/{version}"


def document() -> Json:
    messages = {model.kind_name(): _message(topic, model) for topic in ALL_TOPICS for model in topic.models}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Floodmark", "version": "1.0.0", "description": _DESCRIPTION},
        "defaultContentType": "application/json",
        "channels": {topic.name: _channel(topic) for topic in ALL_TOPICS},
        "components": {"messages": messages, "schemas": {"headers": _headers()}},
    }


def _channel(topic: Topic) -> Json:
    return {
        "address": topic.name,
        "description": f"Keyed by {_key(topic)}: {topic.key_why}.",
        "messages": {kind: {"$ref": f"#/components/messages/{kind}"} for kind in topic.kinds},
        "bindings": {
            "kafka": {
                "topic": topic.name,
                "partitions": topic.partitions,
                "topicConfiguration": {
                    "cleanup.policy": [topic.cleanup_policy],
                    "retention.ms": topic.retention_ms,
                    "max.message.bytes": topic.record_bytes_max,
                },
                "bindingVersion": _KAFKA_BINDING_VERSION,
            }
        },
    }


def _message(topic: Topic, model: type[Message]) -> Json:
    kind = model.kind_name()
    return {
        "name": kind,
        "title": model.__name__,
        "summary": model.__doc__,
        "contentType": "application/json",
        "headers": {"$ref": "#/components/schemas/headers"},
        "payload": {"$ref": f"./{schema_path(topic, kind)}"},
        "bindings": {
            "kafka": {
                "key": {"type": "string", "description": _key(topic)},
                "bindingVersion": _KAFKA_BINDING_VERSION,
            }
        },
    }


def _headers() -> Json:
    properties = {name: {"type": "string", "description": text} for name, text in _HEADER_DESCRIPTIONS.items()}
    return {"type": "object", "properties": properties}


def _key(topic: Topic) -> str:
    return "/".join(f"{{{field}}}" for field in topic.key_fields)
