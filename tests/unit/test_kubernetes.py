"""deploy/kubernetes against the schemas of Kubernetes, and against the code it runs; no cluster takes part."""

import copy
import http.client
import json
import os
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from prometheus_client import CollectorRegistry

from floodmark import __version__
from floodmark.core.ports import SystemClock
from floodmark.local.jars import _pyspark_jar
from floodmark.local.services import SERVICES
from floodmark.service.health import Health
from floodmark.service.port import ServicePort
from floodmark.service.settings import RuntimeSettings, ServiceSettings, load
from floodmark.spark.required import REQUIRED
from floodmark_broker.config import BrokerSettings
from floodmark_consistency.config import ConsistencySettings
from floodmark_ingester.config import IngesterSettings
from floodmark_janitor.config import JanitorSettings
from floodmark_scheduler.config import SchedulerSettings
from floodmark_worker.config import WorkerSettings
from tests.support.eventually import ANSWERED_WITHIN_S
from tests.support.kustomize import Object, build, objects

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
EXAMPLE = KUBERNETES / "overlays" / "example"
README = (KUBERNETES / "README.md").read_text(encoding="utf-8")
IMAGE = dict(re.findall(r"\b(FLOODMARK_\w+)=(\S+)", (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")))
VERSIONS = ("1.29", "1.32", "1.36")
"""The oldest that README.md promises, and newer ones."""
SETTINGS: dict[str, type[ServiceSettings]] = {
    "broker": BrokerSettings,
    "consistency": ConsistencySettings,
    "ingester": IngesterSettings,
    "janitor": JanitorSettings,
    "scheduler": SchedulerSettings,
    "worker": WorkerSettings,
}
DRIVERS = ("broker", "worker")
SECRETS = "/etc/floodmark/"
BUILT = build(EXAMPLE)
each_service = pytest.mark.parametrize("name", sorted(SETTINGS))


def found(kind: str, name: str) -> Object:
    (one,) = [o for o in BUILT if o["kind"] == kind and o["metadata"]["name"] == name]
    return one


def pod(name: str) -> Object:
    return found("Deployment", f"floodmark-{name}")["spec"]["template"]["spec"]


def container(name: str) -> Object:
    (one,) = pod(name)["containers"]
    return one


def environment(name: str) -> dict[str, str]:
    """What a service's process sees: from the image, the ConfigMap and its own manifest."""
    own = {entry["name"]: entry.get("value", "from the pod") for entry in container(name).get("env", ())}
    configured = [found("ConfigMap", s["configMapRef"]["name"])["data"] for s in container(name)["envFrom"]]
    return {**IMAGE, **{k: v for data in configured for k, v in data.items()}, **own}


# -- the schema --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_one_that_kubernetes_knows(version: str) -> None:
    """Unknown fields are errors: a misspelt one would be dropped by the server without a word."""
    executor = objects(KUBERNETES / "spark" / "executor.yaml")
    assert len(BUILT) == 29
    for o in (*BUILT, *executor):
        kubernetes_validate.validate(o, version, strict=True)


@pytest.mark.parametrize(
    "misspell",
    [
        lambda o: o["spec"].update(replica=2),
        lambda o: o["spec"]["template"]["spec"]["containers"][0].update(livenesProbe={}),
        lambda o: o["spec"]["template"]["spec"]["containers"][0]["securityContext"].update(readOnlyRootFileSystem=True),
        lambda o: o["spec"].update(replicas="two"),
        lambda o: o["spec"].pop("selector"),
        lambda o: o["spec"]["template"]["spec"]["containers"][0].pop("name"),
    ],
)
def test_a_typing_error_does_not_pass(misspell: Callable[[Object], Any]) -> None:
    """Otherwise the test above could pass whatever the manifests say."""
    wrong = copy.deepcopy(found("Deployment", "floodmark-worker"))
    misspell(wrong)
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@pytest.mark.skipif(not (shutil.which("kustomize") or shutil.which("kubectl")), reason="neither kustomize nor kubectl")
def test_kustomize_itself_builds_the_same() -> None:
    """The stand-in that all other tests here use is right."""
    command = ["kustomize", "build"] if shutil.which("kustomize") else ["kubectl", "kustomize"]
    text = subprocess.run([*command, str(EXAMPLE)], capture_output=True, text=True, check=True, timeout=60).stdout
    text = re.sub(r"(name: floodmark(?:-executor)?)-[a-z0-9]{10}$", r"\1", text, flags=re.MULTILINE)
    theirs = {(o["kind"], o["metadata"]["name"]): in_any_order(o) for o in yaml.safe_load_all(text)}
    ours = {(o["kind"], o["metadata"]["name"]): in_any_order(o) for o in BUILT}
    assert theirs.keys() == ours.keys()
    for key, built in ours.items():
        assert built == theirs[key], key


def in_any_order(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: in_any_order(v) for key, v in value.items()}
    if isinstance(value, list):
        return sorted((in_any_order(v) for v in value), key=lambda v: json.dumps(v, sort_keys=True))
    return value


# -- the code it runs --------------------------------------------------------------------------------------------------


def test_every_service_is_deployed_with_a_budget_and_an_address() -> None:
    """Whoever adds a service adds its manifests."""
    names = {f"floodmark-{service.name}" for service in SERVICES}
    for kind in ("Deployment", "PodDisruptionBudget", "Service"):
        assert {o["metadata"]["name"] for o in BUILT if o["kind"] == kind} == names


@each_service
def test_what_selects_pods_selects_those_of_the_service_alone(name: str) -> None:
    """A selector that fits two services would send one's requests to the other."""
    labels = {"app.kubernetes.io/name": "floodmark", "app.kubernetes.io/component": name}
    deployment = found("Deployment", f"floodmark-{name}")["spec"]
    assert deployment["template"]["metadata"]["labels"] == labels
    assert deployment["selector"]["matchLabels"] == labels
    assert found("PodDisruptionBudget", f"floodmark-{name}")["spec"]["selector"]["matchLabels"] == labels
    assert found("Service", f"floodmark-{name}")["spec"]["selector"] == labels


@each_service
def test_the_environment_of_a_pod_is_one_its_service_starts_with(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every variable is a setting with a value in its bounds; the files they name are those of the Secret."""
    for variable in [v for v in os.environ if v.startswith("FLOODMARK_")]:
        monkeypatch.delenv(variable)
    for variable, value in environment(name).items():
        if variable.startswith("FLOODMARK_"):
            monkeypatch.setenv(variable, _mounted(value, tmp_path))
    settings = load(SETTINGS[name])
    assert settings.kafka.client_options["security.protocol"] == "sasl_ssl"
    assert settings.zookeeper.access.tls
    assert settings.zookeeper.access.username == "floodmark"
    (port,) = [p["containerPort"] for p in container(name)["ports"] if p["name"] == "http"]
    assert settings.http.port == port
    assert found("Service", f"floodmark-{name}")["spec"]["ports"][0]["targetPort"] == "http"


def _mounted(value: str, directory: Path) -> str:
    if not value.startswith(SECRETS):
        return value
    file = directory / value.removeprefix(SECRETS)
    file.write_text("a secret of some length\n")
    return str(file)


def test_a_misspelt_variable_would_be_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The test above fails for the right reason."""
    monkeypatch.setitem(found("ConfigMap", "floodmark")["data"], "FLOODMARK_KAFKA__BOOTSTRP", "x")
    with pytest.raises(Exception, match="FLOODMARK_KAFKA__BOOTSTRP is not a setting"):
        test_the_environment_of_a_pod_is_one_its_service_starts_with("ingester", tmp_path, monkeypatch)


@each_service
def test_probes_ask_pages_that_a_service_has(name: str) -> None:
    """On the port by its name; a page that is not there would have every pod restarted for ever."""
    asked = [container(name)[probe]["httpGet"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    assert {probe["port"] for probe in asked} == {"http"}
    health = Health(SystemClock(), step_age_max_ms=60_000)
    port = ServicePort(host="127.0.0.1", port=0, health=health, metrics=CollectorRegistry())
    try:
        assert {_status(port.port, probe["path"]) for probe in asked} == {200}
        assert _status(port.port, "/livez") == 404
    finally:
        port.close()
    assert container(name)["livenessProbe"]["httpGet"]["path"] == "/healthz", "an absent Kafka is no reason to restart"


def _status(port: int, page: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWERED_WITHIN_S)
    connection.request("GET", page)
    status = connection.getresponse().status
    connection.close()
    return status


@each_service
def test_a_pod_may_do_nothing_but_its_work(name: str) -> None:
    """As the `restricted` standard of pod security has it, and a file system that cannot be written."""
    security = pod(name)["securityContext"]
    assert security["runAsNonRoot"]
    assert security["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container(name)["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod(name)["automountServiceAccountToken"] is (name in DRIVERS), "only a driver talks to the cluster"
    assert container(name)["resources"].keys() == {"requests", "limits"}


@each_service
def test_kubernetes_adds_no_variables_of_its_own(name: str) -> None:
    """For a Service floodmark-broker it sets FLOODMARK_BROKER_PORT, which no service knows, so none would start."""
    assert pod(name)["enableServiceLinks"] is False


@each_service
def test_a_pod_is_given_longer_to_stop_than_its_service_gives_its_work(name: str) -> None:
    assert pod(name)["terminationGracePeriodSeconds"] * 1000 >= RuntimeSettings().grace_ms + 5_000


@each_service
def test_every_volume_that_is_mounted_is_there_and_only_writers_may_write(name: str) -> None:
    """The lake is written by the worker and the janitor, as in docker-compose.yml."""
    volumes = {volume["name"] for volume in pod(name)["volumes"]}
    mounts = {mount["name"]: mount for mount in container(name)["volumeMounts"]}
    assert mounts.keys() == volumes
    writes = "lake" in mounts and not mounts["lake"].get("readOnly", False)
    assert writes == (name in ("janitor", "worker"))
    assert ("lake" in mounts) == (name not in ("consistency", "scheduler"))


def test_the_secret_that_readme_makes_has_what_the_pods_read() -> None:
    """Exactly those files, under the name that is mounted."""
    read = {v.removeprefix(SECRETS) for n in SETTINGS for v in environment(n).values() if v.startswith(SECRETS)}
    assert set(re.findall(r"--from-file=([\w.-]+)", README)) == read
    assert {v["secret"]["secretName"] for n in SETTINGS for v in pod(n)["volumes"] if "secret" in v} == {"floodmark"}
    assert "kubectl -n floodmark create secret generic floodmark " in README


def test_images_are_those_of_this_version() -> None:
    """The example is raised with the version."""
    images = {name: container(name)["image"] for name in SETTINGS}
    assert images == {name: f"registry.example/floodmark/{name}:{__version__}" for name in SETTINGS}


# -- Spark -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DRIVERS)
def test_spark_settings_are_ones_that_spark_knows(name: str) -> None:
    """Spark ignores a setting it does not know, so each name is looked up in its own classes."""
    options: dict[str, str] = json.loads(environment(name)["FLOODMARK_SPARK__OPTIONS"])
    core = _strings("spark-core_2.13", r"internal/config/package\$")
    known = core + _strings("spark-kubernetes_2.13", r"k8s/Config\$")
    assert not [key for key in options if key.encode() not in known]
    assert b"spark.kubernetes.driver.pod.names" not in known
    assert not options.keys() & REQUIRED.keys()
    assert options["spark.kubernetes.container.image"] == f"registry.example/floodmark/executor:{__version__}"
    ports = {str(p["containerPort"]) for p in container(name)["ports"]}
    allowed = {str(p["port"]) for p in found("NetworkPolicy", "floodmark-spark")["spec"]["ingress"][0]["ports"]}
    assert {options["spark.driver.port"], options["spark.blockManager.port"]} == allowed < ports


def test_variables_in_spark_settings_are_set_before_them() -> None:
    """Kubernetes puts the value of an earlier variable in; a later or unknown one stays as it is written."""
    names = [entry["name"] for entry in container("worker")["env"]]
    used = re.findall(r"\$\((\w+)\)", environment("worker")["FLOODMARK_SPARK__OPTIONS"])
    assert set(used) == {"POD_IP", "POD_NAME", "POD_NAMESPACE"}
    assert all(names.index(name) < names.index("FLOODMARK_SPARK__OPTIONS") for name in used)


def test_an_executor_is_started_with_what_spark_tells_it(tmp_path: Path) -> None:
    """The entrypoint, run with a Java that prints its arguments; names are looked up in Spark's classes."""
    java = tmp_path / "java"
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    script = KUBERNETES / "executor-entrypoint.sh"
    told = set(re.findall(r"\$\{?!?(SPARK_\w+)", script.read_text())) | {"SPARK_JAVA_OPT_"}
    known = _strings("spark-kubernetes_2.13", r"k8s/Constants\$|k8s/KubernetesExecutorBackend\$")
    assert not [name for name in told if name.encode() not in known]
    values = {name: f"<{name}>" for name in told} | {f"SPARK_JAVA_OPT_{n}": f"-Dn={n}" for n in (0, 1, 2, 10)}
    del values["SPARK_JAVA_OPT_"]
    path = f"{tmp_path}:{ROOT / '.venv' / 'bin'}:/usr/bin:/bin"
    run = started(script, "executor", PATH=path, **values)
    assert run.returncode == 0, run.stderr
    arguments = run.stdout.splitlines()
    assert arguments[:4] == ["-Dn=0", "-Dn=1", "-Dn=2", "-Dn=10"]
    flags = dict(zip(arguments[-14::2], arguments[-13::2], strict=True))
    assert not [flag for flag in flags if flag.encode() not in known]
    assert flags["--driver-url"] == "<SPARK_DRIVER_URL>"
    assert started(script, "driver", PATH=path).returncode == 64


def started(script: Path, word: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(script), word]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)


def _strings(artifact: str, classes: str) -> bytes:
    with zipfile.ZipFile(_pyspark_jar(artifact)) as jar:
        return b"".join(jar.read(name) for name in jar.namelist() if re.search(classes, name))
