"""Writes `schemas/` from the models, and finds what does not match them: `python -m floodmark.contracts.generate`.

    <topic>/<version>/<kind>.schema.json     follows the model
    <topic>/<version>/examples/<name>.json   written once, then only read: it must decode for ever
    asyncapi.json                            follows the topics

An example on disk that examples.py no longer lists is still decoded: it stands for records already in someone's log.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from floodmark.contracts import asyncapi
from floodmark.contracts.envelope import Envelope, decode, encode
from floodmark.contracts.examples import ALL_EXAMPLES, Example
from floodmark.contracts.messages import Message
from floodmark.contracts.topics import ALL_TOPICS, Topic, topic_of
from floodmark.core.errors import InvalidInput


class _WireSchema(GenerateJsonSchema):
    """Without a title for each field that only repeats its name."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 - pydantic's signature
        return False


def write(root: Path) -> None:
    """Bring schemas and the AsyncAPI document up to date and add missing examples. Nothing is deleted."""
    for path, text in _derived().items():
        _write(root / path, text)
    for path, example in _examples().items():
        if not (root / path).exists():
            _write(root / path, _text(_example_json(example)))


def problems(root: Path) -> list[str]:
    """Each file that is missing, out of date, stray or no longer decodes, with what is wrong about it."""
    return sorted([*_derived_problems(root), *_example_problems(root), *_stray_problems(root)])


def _derived_problems(root: Path) -> Iterator[str]:
    for path, text in _derived().items():
        file = root / path
        if not file.is_file():
            yield f"{file}: missing"
        elif file.read_bytes() != text.encode():
            yield f"{file}: out of date"


def _example_problems(root: Path) -> Iterator[str]:
    declared = _examples()
    yield from (f"{root / path}: missing" for path in declared if not (root / path).is_file())
    for topic in ALL_TOPICS:
        for file in sorted((root / _examples_folder(topic)).glob("*.json")):
            try:
                message = _decoded(topic, file).message
            except InvalidInput as refusal:
                yield f"{file}: no longer decodes: {refusal}"
                continue
            example = declared.get(file.relative_to(root).as_posix())
            if example is not None and example.envelope.message != message:
                yield f"{file}: decodes to another message than examples.py has; a new message needs a new example"


def _stray_problems(root: Path) -> Iterator[str]:
    folders = {root / _examples_folder(topic) for topic in ALL_TOPICS}
    expected = {root / path for path in _derived()}
    for file in root.rglob("*"):
        is_example = file.parent in folders and file.suffix == ".json"
        if file.is_file() and file not in expected and not is_example:
            yield f"{file}: stray, nothing generates it"


def _derived() -> dict[str, str]:
    """The files that follow from the code, by path."""
    files = {"asyncapi.json": _text(asyncapi.document())}
    for topic in ALL_TOPICS:
        for model in topic.models:
            files[asyncapi.schema_path(topic, model.kind_name())] = _text(_schema(topic, model))
    return files


def _schema(topic: Topic, model: type[Message]) -> dict[str, Any]:
    return {
        "$schema": _WireSchema.schema_dialect,
        "$id": f"urn:floodmark:{topic.name}:{model.kind_name()}",
        **model.model_json_schema(mode="serialization", schema_generator=_WireSchema),
    }


def _examples() -> dict[str, Example]:
    paths = {_example_path(example): example for example in ALL_EXAMPLES}
    assert len(paths) == len(ALL_EXAMPLES), "two examples of one topic have the same name"
    return paths


def _example_path(example: Example) -> str:
    return f"{_examples_folder(topic_of(example.envelope.message))}/{example.name}.json"


def _examples_folder(topic: Topic) -> str:
    return f"{asyncapi.folder(topic)}/examples"


def _example_json(example: Example) -> dict[str, Any]:
    key, value, headers = encode(example.envelope)
    if example.by_hand:
        return {
            "key": key.decode(),
            "headers": {},
            "value": json.loads(example.envelope.message.model_dump_json(exclude_none=True)),
        }
    return {
        "key": key.decode(),
        "headers": {name: text.decode() for name, text in headers},
        "value": json.loads(value),
    }


def _decoded(topic: Topic, file: Path) -> Envelope:
    try:
        example = json.loads(file.read_bytes())
        value = json.dumps(example["value"]).encode()
        headers = [(name, text.encode()) for name, text in example["headers"].items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise InvalidInput("example", f"{file.name} must hold headers and a value: {error!r}") from error
    return decode(topic.name, value, headers, fallback_id=f"{topic.name}/0/0")


def _text(content: dict[str, Any]) -> str:
    return json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(text.encode())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m floodmark.contracts.generate", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing, fail when something does not match")
    parser.add_argument("--dir", type=Path, default=Path("schemas"), help="where the files are (default: schemas)")
    options = parser.parse_args(arguments)
    if not options.check:
        write(options.dir)
    found = problems(options.dir)
    sys.stderr.writelines(f"{problem}\n" for problem in found)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
