"""What a stack remembers in DIR/stack.toml."""

from pathlib import Path

import pytest

from floodmark.core.errors import InvalidInput
from floodmark.local.config import changed_ports, configure, read, save
from floodmark.local.services import Service

SERVICES = (Service("ingester", "floodmark_ingester"),)
ASKED = {"zookeeper": 21_901, "kafka": 21_902, "kafka-controller": 21_903, "ingester": 21_904}


def test_saved_stack_is_read_back_and_used_again(tmp_path: Path) -> None:
    """A second `up` without flags uses the ports of the first."""
    first = configure(tmp_path, services=SERVICES, asked=ASKED)
    save(first)
    assert read(tmp_path) == first == configure(tmp_path, services=SERVICES, asked={})


def test_port_of_a_service_left_out_once_is_not_forgotten(tmp_path: Path) -> None:
    """`--no-services` for an afternoon does not move a service to another port."""
    save(configure(tmp_path, services=SERVICES, asked=ASKED))
    save(configure(tmp_path, services=(), asked={}))
    assert configure(tmp_path, services=SERVICES, asked={}).ports["ingester"] == 21_904


def test_changed_port_is_told_with_both_numbers(tmp_path: Path) -> None:
    """Whoever moves a port hears about it, and nobody else does."""
    save(configure(tmp_path, services=(), asked=ASKED))
    changed = configure(tmp_path, services=(), asked={"kafka": 21_950})
    assert changed_ports(changed) == ["the port of Kafka changes from 21902 to 21950, as asked"]
    assert changed_ports(configure(tmp_path, services=(), asked={})) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[ports", "is not TOML"),
        ("[ports]\nzookeeper = 2181\nkafka = 'high'", "kafka = 'high'; a port is a number from 1 to 65535"),
        ("[ports]\nzookeeper = 2181", "kafka = None; a port is a number"),
    ],
)
def test_broken_stack_file_is_refused_with_its_path_and_fault(tmp_path: Path, text: str, complaint: str) -> None:
    """Ports are never guessed from a file that cannot be read."""
    (tmp_path / "stack.toml").write_text(text)
    with pytest.raises(InvalidInput, match=complaint) as caught:
        read(tmp_path)
    assert str(tmp_path / "stack.toml") in str(caught.value)
