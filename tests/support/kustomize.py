"""As much of kustomize as deploy/kubernetes uses, for machines that have none.

Resources, components, labels, strategic merge patches, generated ConfigMaps (without the hash in their names),
namespace and images. A field that is not listed here is refused, so that nothing is overlooked.
"""

import copy
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

Object = dict[str, Any]

_KNOWN = {
    "apiVersion", "kind", "resources", "components", "labels", "patches", "configMapGenerator", "namespace", "images",
}  # fmt: skip
_CLUSTER_WIDE = {"Namespace"}
_MERGE_KEYS = ("mountPath", "containerPort", "name")
"""By which Kubernetes tells the elements of a list apart, where it merges lists at all."""


def build(directory: Path) -> list[Object]:
    """Every object of a kustomization, as it would be sent to the cluster."""
    return _build(directory, [])


def objects(path: Path) -> list[Object]:
    return [document for document in yaml.safe_load_all(path.read_text(encoding="utf-8")) if document]


def _build(directory: Path, found: list[Object]) -> list[Object]:
    """A component works on what was found so far; everything else starts from nothing."""
    plan = yaml.safe_load((directory / "kustomization.yaml").read_text(encoding="utf-8"))
    assert plan.keys() <= _KNOWN, f"{directory}: unknown {plan.keys() - _KNOWN}"
    for entry in plan.get("resources", ()):
        path = directory / entry
        found = [*found, *(build(path) if path.is_dir() else objects(path))]
    for generator in plan.get("configMapGenerator", ()):
        found = [*found, _config_map(generator, directory)]
    for entry in plan.get("components", ()):
        found = _build(directory / entry, found)
    for patch in plan.get("patches", ()):
        found = [_patched(o, patch, directory) for o in found]
    for labels in plan.get("labels", ()):
        _label(found, labels["pairs"])
    for o in found if "namespace" in plan else ():
        _put_into(o, plan["namespace"])
    for container in _containers(found):
        container["image"] = _renamed(container["image"], plan.get("images", ()))
    return found


def _config_map(generator: Object, directory: Path) -> Object:
    data = dict(literal.split("=", 1) for literal in generator.get("literals", ()))
    data |= {name: (directory / name).read_text(encoding="utf-8") for name in generator.get("files", ())}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator["name"]}, "data": data}


def _patched(o: Object, patch: Object, directory: Path) -> Object:
    target = patch["target"]
    fits = o["kind"] == target["kind"] and re.fullmatch(target.get("name", ".*"), o["metadata"]["name"])
    if not fits:
        return o
    (change,) = objects(directory / patch["path"])
    del change["metadata"]["name"]
    return merged(o, change)


def merged(value: Any, change: Any) -> Any:
    """Strategic merge: maps key by key, lists of named things by name, everything else replaced."""
    if isinstance(value, dict) and isinstance(change, dict):
        return {key: merged(value.get(key), change.get(key)) for key in {**value, **change}}
    if isinstance(value, list) and isinstance(change, list) and (key := _merge_key(value, change)):
        elements: dict[Any, Any] = {element[key]: element for element in value}
        for element in change:
            elements[element[key]] = merged(elements.get(element[key]), element)
        return list(elements.values())
    return copy.deepcopy(value if change is None else change)


def _merge_key(*lists: list[Any]) -> str | None:
    elements = [element for found in lists for element in found]
    maps = all(isinstance(element, dict) for element in elements)
    return next((k for k in _MERGE_KEYS if maps and all(k in element for element in elements)), None)


def _label(found: Iterable[Object], pairs: dict[str, str]) -> None:
    for o in found:
        spec = o.get("spec", {})
        places = [o["metadata"].setdefault("labels", {})]
        match o["kind"]:
            case "Deployment":
                places += [spec["selector"]["matchLabels"], spec["template"]["metadata"]["labels"]]
            case "PodDisruptionBudget":
                places.append(spec["selector"]["matchLabels"])
            case "NetworkPolicy":
                places.append(spec["podSelector"]["matchLabels"])
            case "Service":
                places.append(spec["selector"])
        for place in places:
            place.update(pairs)


def _put_into(o: Object, namespace: str) -> None:
    if o["kind"] not in _CLUSTER_WIDE:
        o["metadata"]["namespace"] = namespace
    for subject in o.get("subjects", ()):
        subject["namespace"] = namespace


def _containers(found: Iterable[Object]) -> Iterator[Object]:
    for o in found:
        if o["kind"] == "Deployment":
            yield from o["spec"]["template"]["spec"]["containers"]


def _renamed(image: str, renames: Iterable[Object]) -> str:
    for rename in renames:
        if image == rename["name"]:
            return f"{rename['newName']}:{rename['newTag']}"
    return image
