"""Servers that ask who is there: a ZooKeeper with a TLS port, a Kafka that only speaks SASL over TLS, and the keys."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives import serialization

from floodmark.ledger.access import Access
from floodmark.local.kafka import KafkaServer
from floodmark.local.ports import LOOPBACK, pick_free_port, pick_free_ports
from floodmark.local.zookeeper import ZooKeeperServer

USER = "floodmark"
MECHANISM = "SCRAM-SHA-512"

_ZOOKEEPER = """\
serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory
secureClientPort={port}
secureClientPortAddress={host}
ssl.keyStore.type=PEM
ssl.keyStore.location={keys.server}
ssl.trustStore.type=PEM
ssl.trustStore.location={keys.ca}
ssl.clientAuth={client_auth}
"""
_KAFKA = """\
listeners=SASL_SSL://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=SASL_SSL://{host}:{port}
listener.security.protocol.map=SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=SASL_SSL
sasl.enabled.mechanisms={mechanism}
sasl.mechanism.inter.broker.protocol={mechanism}
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule \
required username="{user}" password="{password}";
ssl.keystore.type=PEM
ssl.keystore.location={keys.server}
ssl.truststore.type=PEM
ssl.truststore.location={keys.ca}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:{user};User:ANONYMOUS
"""


@dataclass(frozen=True)
class Keys:
    """An authority, a server's certificate for 127.0.0.1 and nothing else, and a client's. Java wants PKCS 8."""

    directory: Path

    def __post_init__(self) -> None:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.ca)
        trustme.CA().cert_pem.write_to_path(self.other_ca)
        served = authority.issue_cert(LOOPBACK)
        self.server.write_bytes(_pkcs8(served) + b"".join(pem.bytes() for pem in served.cert_chain_pems))
        ours = authority.issue_cert("client@floodmark.test", common_name=USER)
        self.client_key.write_bytes(_pkcs8(ours))
        self.client_cert.write_bytes(b"".join(pem.bytes() for pem in ours.cert_chain_pems))

    ca = property(lambda self: self.directory / "ca.pem")
    other_ca = property(lambda self: self.directory / "other-ca.pem")
    server = property(lambda self: self.directory / "server.pem")
    client_key = property(lambda self: self.directory / "client-key.pem")
    client_cert = property(lambda self: self.directory / "client.pem")


def _pkcs8(issued: trustme.LeafCert) -> bytes:
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), password=None)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


class SecuredZooKeeper(ZooKeeperServer):
    """`hosts` is its TLS port; the other one stays open for whoever wants to see that it does not help."""

    def __init__(self, directory: Path, keys: Keys, *, client_auth: str = "none", more: str = "") -> None:
        self._tls_port = pick_free_port()
        lines = _ZOOKEEPER.format(host=LOOPBACK, port=self._tls_port, keys=keys, client_auth=client_auth)
        super().__init__(directory, pick_free_port(), more=lines + more)

    @property
    def hosts(self) -> str:
        return f"{LOOPBACK}:{self._tls_port}"

    @property
    def plain_hosts(self) -> str:
        return self.address


@dataclass(frozen=True)
class Secured:
    """Both servers, and what it takes to get in."""

    zookeeper: SecuredZooKeeper
    kafka: KafkaServer
    keys: Keys
    zookeeper_password: str
    kafka_password: str
    reader_password: str
    """Of a Kafka user `reader`, who may do nothing yet."""

    @property
    def secrets(self) -> tuple[str, ...]:
        return (self.zookeeper_password, self.kafka_password, self.reader_password)

    @property
    def access(self) -> Access:
        return Access(USER, self.zookeeper_password, tls=True, ca=self.keys.ca)

    def kafka_options(self, user: str = USER, password: str | None = None) -> dict[str, str]:
        return {
            "security.protocol": "sasl_ssl",
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": password or self.kafka_password,
            "ssl.ca.location": str(self.keys.ca),
        }

    def settings(self) -> dict[str, str]:
        """For a service, with the passwords in files, as a container has them."""
        written = {}
        for name, password in (("ZOOKEEPER", self.zookeeper_password), ("KAFKA", self.kafka_password)):
            file = self.keys.directory / f"{name.lower()}-password"
            file.write_text(f"{password}\n")
            written |= {
                f"FLOODMARK_{name}__USERNAME": USER,
                f"FLOODMARK_{name}__PASSWORD_FILE": str(file),
                f"FLOODMARK_{name}__TLS": "true",
                f"FLOODMARK_{name}__TLS_CA": str(self.keys.ca),
            }
        return written


@contextmanager
def secured_servers(directory: Path) -> Iterator[Secured]:
    zookeeper_password, kafka_password, reader_password = (f"secret-{uuid.uuid4().hex}" for _ in range(3))
    (directory / "keys").mkdir()
    keys = Keys(directory / "keys")
    zookeeper = SecuredZooKeeper(directory, keys)
    port, controller_port = pick_free_ports(2)
    lines = _KAFKA.format(
        host=LOOPBACK,
        port=port,
        controller_port=controller_port,
        mechanism=MECHANISM,
        user=USER,
        password=kafka_password,
        keys=keys,
    )
    users = [f"{MECHANISM}=[name={n},password={p}]" for n, p in ((USER, kafka_password), ("reader", reader_password))]
    options = {"security.protocol": "sasl_ssl", "sasl.mechanism": MECHANISM, "ssl.ca.location": str(keys.ca)}
    options |= {"sasl.username": USER, "sasl.password": kafka_password}
    kafka = KafkaServer(directory, port, controller_port, more=lines, users=users, client_options=options)
    try:
        zookeeper.start()
        kafka.start()
        yield Secured(zookeeper, kafka, keys, zookeeper_password, kafka_password, reader_password)
    finally:
        kafka.stop()
        zookeeper.stop()
