"""The files in `schemas/` match the models, and the check that says so can fail."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from floodmark.contracts import generate
from floodmark.contracts.examples import ALL_EXAMPLES
from floodmark.contracts.topics import ALL_TOPICS

COMMITTED = Path(__file__).parents[2] / "schemas"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A generated tree that passes, to be damaged."""
    root = tmp_path / "schemas"
    assert generate.main(["--dir", str(root)]) == 0
    return root


def check(root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, list[str]]:
    code = generate.main(["--check", "--dir", str(root)])
    return code, capsys.readouterr().err.splitlines()


def load(file: Path) -> Any:
    return json.loads(file.read_text())


def test_the_committed_schemas_are_up_to_date() -> None:
    """What is in the repository is what the models say."""
    assert generate.problems(COMMITTED) == []


def test_generation_is_deterministic(tree: Path, tmp_path: Path) -> None:
    """Two runs write the same bytes, keys sorted, a newline at the end."""
    generate.main(["--dir", str(tmp_path / "again")])
    files = {file.relative_to(tree): file.read_bytes() for file in tree.rglob("*.json")}
    assert files == {path: (tmp_path / "again" / path).read_bytes() for path in files}
    for text in files.values():
        assert text.decode() == json.dumps(json.loads(text), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def test_a_changed_schema_is_named(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A schema that differs from its model fails the check, and generating repairs it."""
    file = tree / "segments/v1/segments-changed.v1.schema.json"
    file.write_text(file.read_text().replace('"minItems": 1', '"minItems": 0'))
    assert check(tree, capsys) == (1, [f"{file}: out of date"])
    assert generate.main(["--dir", str(tree)]) == 0


def test_missing_files_are_named(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A schema or an example that was deleted fails the check."""
    gone = [tree / "asyncapi.json", tree / "tasks/v1/examples/append.json"]
    for file in gone:
        file.unlink()
    assert check(tree, capsys) == (1, [f"{file}: missing" for file in gone])


@pytest.mark.parametrize("name", ["segments/v1/old.schema.json", "notes.txt", "tasks/v1/examples/README"])
def test_a_stray_file_is_named(tree: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """What nothing generates does not belong there, and generating does not delete it."""
    (tree / name).write_text("{}")
    assert check(tree, capsys) == (1, [f"{tree / name}: stray, nothing generates it"])
    assert generate.main(["--dir", str(tree)]) == 1


def test_an_example_that_no_longer_decodes_is_named(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An old record that today's models refuse is a breaking change."""
    file = tree / "segments/v1/examples/moved.json"
    example = load(file)
    del example["value"]["changes"][0]["crc"]
    file.write_text(json.dumps(example))
    code, lines = check(tree, capsys)
    assert (code, len(lines)) == (1, 1)
    assert lines[0].startswith(f"{file}: no longer decodes: schema: ")
    assert "changes.0.crc: Field required" in lines[0]


def test_an_example_that_decodes_to_something_else_is_named(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Changing an example in the code does not rewrite history: it takes a new example."""
    file = tree / "results/v1/examples/covered.json"
    example = load(file)
    example["value"]["duration_ms"] += 1
    file.write_text(json.dumps(example))
    code, lines = check(tree, capsys)
    assert (code, len(lines)) == (1, 1)
    assert lines[0].startswith(f"{file}: decodes to another message")


@pytest.mark.parametrize(
    "text",
    ["[]", "{", '{"value": {}}', '{"headers": {"a": 1}, "value": {}}', '{"headers": 0}', "[" * 100_000],
    ids=["list", "cut", "no-headers", "header-not-text", "headers-not-object", "deep"],
)
def test_an_example_that_is_no_record_is_named(tree: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    """A file in an examples folder must hold headers and a value."""
    file = tree / "tasks/v1/examples/broken.json"
    file.write_text(text)
    code, lines = check(tree, capsys)
    assert (code, len(lines)) == (1, 1)
    assert lines[0].startswith(f"{file}: no longer decodes: example: broken.json must hold headers and a value")


def test_an_example_is_never_rewritten(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record an older version wrote differently stays as it is, as long as it means the same."""
    file = tree / "announcements/v1/examples/add.json"
    example = load(file)
    example["value"]["metadata"]["crc"] = int(example["value"]["metadata"]["crc"])
    example["value"]["since_removed"] = True
    file.write_text(json.dumps(example))
    older = file.read_text()
    assert generate.main(["--dir", str(tree)]) == 0
    assert file.read_text() == older
    assert check(tree, capsys) == (0, [])


def test_an_example_the_code_no_longer_lists_must_still_decode(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It stands for records in someone's log: kept and decoded, not called stray."""
    example = load(tree / "tasks/v1/examples/append.json")
    kept = tree / "tasks/v1/examples/from-long-ago.json"
    kept.write_text(json.dumps(example))
    assert check(tree, capsys) == (0, [])
    example["value"]["mode"] = "UPSERT"
    kept.write_text(json.dumps(example))
    assert check(tree, capsys)[0] == 1


@pytest.mark.parametrize("topic", ALL_TOPICS, ids=lambda topic: topic.name)
def test_examples_validate_against_their_json_schema(topic: Any, tree: Path) -> None:
    """The schemas describe the wire: 64-bit numbers as strings, bytes as base64, kind required."""
    folder = tree / topic.name.replace(".", "/")
    seen = 0
    for kind in topic.kinds:
        schema = load(folder / f"{kind}.schema.json")
        assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
        assert schema["$id"] == f"urn:floodmark:{topic.name}:{kind}"
        Draft202012Validator.check_schema(schema)
        validator = Draft202012Validator(schema)
        for file in (folder / "examples").glob("*.json"):
            validator.validate(load(file)["value"])
            seen += 1
        assert not validator.is_valid({})
    assert seen == sum(example.envelope.message.kind in topic.kinds for example in ALL_EXAMPLES)


def test_the_schema_refuses_what_the_wire_never_has(tree: Path) -> None:
    """A CRC as a number, a missing kind and a bad name are refused by the schema too."""
    folder = tree / "announcements/v1"
    validator = Draft202012Validator(load(folder / "segment-announced.v1.schema.json"))
    value = load(folder / "examples/add.json")["value"]
    assert validator.is_valid(value)
    assert not validator.is_valid(value | {"metadata": {"crc": 1}})
    assert not validator.is_valid({name: item for name, item in value.items() if name != "kind"})
    assert not validator.is_valid(value | {"table": "Trips"})


def references(content: Any) -> Iterator[str]:
    if isinstance(content, dict):
        if isinstance(content.get("$ref"), str):
            yield content["$ref"]
        for item in content.values():
            yield from references(item)
    elif isinstance(content, list):
        for item in content:
            yield from references(item)


def resolved(file: Path, reference: str) -> Any:
    path, _, pointer = reference.partition("#")
    content = load(file.parent / path if path else file)
    for step in pointer.split("/")[1:]:
        content = content[step]
    return content


def test_every_reference_of_the_asyncapi_document_resolves(tree: Path) -> None:
    """References lead to a message, the headers or a schema file, and on inside the schema files."""
    file = tree / "asyncapi.json"
    found = list(references(load(file)))
    schema_files = [reference for reference in found if reference.startswith("./")]
    assert len(schema_files) == sum(len(topic.models) for topic in ALL_TOPICS)
    assert all(resolved(file, reference) for reference in found)
    for reference in schema_files:
        schema_file = file.parent / reference
        assert all(resolved(schema_file, inner) for inner in references(load(schema_file)))


def test_the_asyncapi_document_describes_each_topic(tree: Path) -> None:
    """AsyncAPI 3.0: channels are the topics with their Kafka settings, and every message says its key."""
    document = load(tree / "asyncapi.json")
    assert document["asyncapi"] == "3.0.0"
    assert {"title", "version"} <= document["info"].keys()
    assert document["channels"].keys() == {topic.name for topic in ALL_TOPICS}
    for topic in ALL_TOPICS:
        channel = document["channels"][topic.name]
        kafka = channel["bindings"]["kafka"]
        assert (channel["address"], kafka["topic"]) == (topic.name, topic.name)
        assert kafka["partitions"] == topic.partitions
        assert kafka["topicConfiguration"]["retention.ms"] == topic.retention_ms
        assert kafka["topicConfiguration"]["cleanup.policy"] == ["delete"]
        assert channel["messages"].keys() == set(topic.kinds)
        for kind in topic.kinds:
            message = document["components"]["messages"][kind]
            assert message["name"] == kind
            assert message["bindings"]["kafka"]["key"]["description"] == "/".join(f"{{{f}}}" for f in topic.key_fields)
