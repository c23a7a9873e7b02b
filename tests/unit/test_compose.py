"""docker-compose.yml against the code it runs, read as text: what would otherwise show only once containers start."""

import re
from pathlib import Path

import pytest

from floodmark.local.jars import KAFKA_VERSION, zookeeper_classpath
from floodmark.local.services import SERVICES, Service
from floodmark.service.settings import RuntimeSettings, load
from floodmark_ingester.config import IngesterSettings

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text(encoding="utf-8")
BASE_IMAGES = (ROOT / "deploy" / "build-base-images.sh").read_text(encoding="utf-8")
IMAGES = (ROOT / "deploy" / "build-images.sh").read_text(encoding="utf-8")
TOKEN = "a token of some length"
ENV_EXAMPLE = (ROOT / ".env.example").read_text(encoding="utf-8")


def service_block(name: str) -> str:
    """The lines of one service: from its name to the next line that is indented as little."""
    found = re.search(rf"^  {name}:\n((?:    .*\n|\n)+)", COMPOSE, re.MULTILINE)
    assert found, f"docker-compose.yml has no service {name}"
    return found[1]


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_every_service_of_the_local_stack_has_a_container(service: Service) -> None:
    """Whoever adds a service to `floodmark up` adds it here, with the shared settings and its own role."""
    block = service_block(service.name)
    assert "<<: *service\n" in block
    assert f"image: floodmark/{service.name}\n" in block
    assert f"ROLE: {service.module.removeprefix('floodmark_')}}}" in block


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_compose_and_the_build_script_give_a_role_the_same_packages(service: Service) -> None:
    """`docker-compose build` and `make images` make the same image."""
    asked = re.search(r"REQUIREMENTS: (\w+)", service_block(service.name))
    built = re.search(rf"^roles (\w+) .*\b{service.name}\b", IMAGES, re.MULTILINE)
    assert asked is not None
    assert built is not None
    assert asked[1] == built[1]
    assert (ROOT / "requirements" / f"{built[1]}.txt").exists()


def test_containers_run_the_servers_of_the_local_stack() -> None:
    """The same Kafka and the same line of ZooKeeper, whether as processes or as containers."""
    zookeeper = re.search(r"/zookeeper-(\d+\.\d+)\.", zookeeper_classpath())
    assert zookeeper is not None
    assert f"image: apache/kafka:{KAFKA_VERSION}\n" in service_block("kafka")
    assert f"image: zookeeper:{zookeeper[1]}\n" in service_block("zookeeper")


def test_every_public_image_can_be_built_without_a_registry() -> None:
    """deploy/build-base-images.sh makes exactly the names that the compose file and the Dockerfile ask for."""
    asked = re.findall(r"^    image: (?!floodmark/)(\S+)$", COMPOSE, re.MULTILINE)
    asked += re.findall(r"^FROM (\S+:\S+)", DOCKERFILE, re.MULTILINE)
    built = re.findall(r"^if absent (?!floodmark/)(\S+); then", BASE_IMAGES, re.MULTILINE)
    needed = re.search(r"^bases=\((.+)\)$", IMAGES, re.MULTILINE)
    assert needed is not None
    assert set(built) == set(asked) == set(needed[1].split())


def test_settings_of_the_containers_are_ones_the_services_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt or ill-typed FLOODMARK_ variable would end every service at its start."""
    image = dict(re.findall(r"\b(FLOODMARK_\w+)=(\S+)", DOCKERFILE))
    compose = dict(re.findall(r"^ +(FLOODMARK_\w+): (.+)$", COMPOSE, re.MULTILINE))
    chosen = {name: re.sub(r"\$\{\w+:\?[^}]*\}", TOKEN, value).strip("'") for name, value in compose.items()}
    environ = {name: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value).strip('"') for name, value in (image | chosen).items()}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    settings = load(IngesterSettings)
    assert (settings.zookeeper.hosts, settings.kafka.bootstrap) == ("zookeeper:2181", "kafka:9092")
    assert settings.http.host == "0.0.0.0"
    assert [token.get_secret_value() for token in settings.ingester.admin_tokens] == [TOKEN]
    assert f"EXPOSE {settings.http.port}\n" in DOCKERFILE


def test_containers_are_given_longer_to_stop_than_a_service_gives_its_work() -> None:
    """Docker kills after 10 s unless told otherwise, which would cut running work short."""
    grace_s = re.search(r"^  stop_grace_period: (\d+)s", COMPOSE, re.MULTILINE)
    assert grace_s is not None
    assert int(grace_s[1]) * 1000 > RuntimeSettings().grace_ms


def test_ports_are_published_on_loopback_only() -> None:
    """ZooKeeper and Kafka ask nobody for a password."""
    published = re.findall(r"^    ports: \[(.+?)\]", COMPOSE, re.MULTILINE)
    assert len(published) == COMPOSE.count("ports:"), "ports are written on one line"
    assert all(port.strip(' "').startswith("127.0.0.1:") for ports in published for port in ports.split(", "))


def test_what_runs_twice_takes_any_free_port() -> None:
    """Two replicas cannot share one port of the machine."""
    for name in ("scheduler", "worker"):
        assert "    scale: 2\n" in service_block(name)
        assert '    ports: ["127.0.0.1::8180"]' in service_block(name)


@pytest.mark.parametrize("name", ["worker", "broker"])
def test_spark_may_load_libraries_from_its_scratch(name: str) -> None:
    """A tmpfs is noexec unless told otherwise, and Spark unpacks its compression codecs there."""
    assert re.search(r"tmpfs: (\*scratch|&scratch \[\"/tmp:exec,)", service_block(name))


def test_env_example_lists_every_choice_with_its_default() -> None:
    """Copying it to .env unchanged changes nothing but the project's name."""
    choices = dict(re.findall(r"\$\{(\w+):-([^}]*)\}", COMPOSE))
    example = dict(re.findall(r"^(\w+)=(.*)$", ENV_EXAMPLE, re.MULTILINE))
    assert example == choices | {"COMPOSE_PROJECT_NAME": "floodmark"}
