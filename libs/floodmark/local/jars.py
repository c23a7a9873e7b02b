"""The jars that ZooKeeper and Kafka run from.

ZooKeeper's are inside pyspark. Kafka's are resolved once, by the Ivy that is inside pyspark too, into a cache of the
user, and are checked against sums pinned in this package every time they are used. So Java is all that it takes.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources, util
from pathlib import Path

from floodmark.core.errors import Unavailable
from floodmark.local.files import FileLock
from floodmark.local.java import find_java

KAFKA_VERSION = "4.3.1"
KAFKA_MODULE = ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION)
RESOLVE_TIMEOUT_S = 900
CACHE_VARIABLE = "FLOODMARK_CACHE_DIR"
JARS_VARIABLE = "FLOODMARK_KAFKA_JARS"
IVY_VARIABLE = "FLOODMARK_IVY_SETTINGS"

_LOGGING = ("slf4j-api", "log4j-api", "log4j-core", "log4j-slf4j2-impl")
_NETTY = (
    "netty-buffer", "netty-codec-base", "netty-common", "netty-handler", "netty-resolver", "netty-transport",
    "netty-transport-classes-epoll", "netty-transport-native-unix-common",
)  # fmt: skip
"""What ZooKeeper needs to speak TLS."""
_ZOOKEEPER = ("zookeeper", "zookeeper-jute", "snappy-java", "metrics-core", *_NETTY, *_LOGGING)

Resolver = Callable[[Path], None]


def zookeeper_classpath() -> str:
    return os.pathsep.join(str(_pyspark_jar(artifact)) for artifact in _ZOOKEEPER)


def kafka_classpath(jars: Path) -> str:
    """Kafka's jars, with its silent slf4j 1.7 replaced by pyspark's logging, which matches its log4j."""
    own = [jar for jar in sorted(jars.glob("*.jar")) if not jar.name.startswith(_LOGGING)]
    return os.pathsep.join(str(jar) for jar in [*own, *(_pyspark_jar(artifact) for artifact in _LOGGING)])


def ensure_kafka_jars(
    environ: Mapping[str, str] = os.environ,
    *,
    pinned: Mapping[str, str] | None = None,
    resolve: Resolver | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Path:
    """The directory of Kafka's jars, fetched if it is absent or damaged. Safe to call from many processes at once."""
    if given := environ.get(JARS_VARIABLE):
        return _given_directory(Path(given))
    sums = pinned_sums() if pinned is None else pinned
    target = cache_directory(environ) / f"kafka-{KAFKA_VERSION}"
    if target.is_dir() and not differences(target, sums):
        return target
    with FileLock(target.with_name(f"{target.name}.lock")).waiting():
        found = differences(target, sums) if target.is_dir() else []
        if target.is_dir() and not found:
            return target  # someone else fetched it while we waited
        for difference in found:
            say(f"{target}: {difference}; fetching again")
        say(f"fetching Kafka {KAFKA_VERSION} into {target} (44 MB, about half a minute)")
        _fetch(target, sums, resolve or _ivy_resolver(environ))
    return target


def cache_directory(environ: Mapping[str, str]) -> Path:
    if given := environ.get(CACHE_VARIABLE):
        return Path(given).absolute()
    return Path.home() / ".cache" / "floodmark"


def pinned_sums() -> dict[str, str]:
    """Jar name -> SHA-256, from the list in this package (the format of `sha256sum`)."""
    text = resources.files("floodmark.local").joinpath("kafka-jars.sha256").read_text(encoding="ascii")
    return {name: digest for digest, name in (line.split() for line in text.splitlines())}


def differences(directory: Path, pinned: Mapping[str, str]) -> list[str]:
    """What a directory of jars has other than the pinned ones, one line for each jar; empty when all is well."""
    present = {jar.name: jar for jar in directory.glob("*.jar")}
    missing = [f"{name} is missing" for name in pinned if name not in present]
    foreign = [f"{name} is not one of the pinned jars" for name in present if name not in pinned]
    damaged = [
        f"{name} has SHA-256 {digest}, pinned is {pinned[name]}"
        for name, jar in present.items()
        if name in pinned and (digest := _sha256(jar)) != pinned[name]
    ]
    return sorted([*missing, *foreign, *damaged])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _given_directory(directory: Path) -> Path:
    """Jars the operator vouches for, typically on a machine without a network; their versions are theirs to choose."""
    if not any(directory.glob("kafka_2.13-*.jar")):
        raise Unavailable(f"{JARS_VARIABLE} is {directory}, which has no kafka_2.13-*.jar; it must hold Kafka's jars")
    return directory.absolute()


def _fetch(target: Path, pinned: Mapping[str, str], resolve: Resolver) -> None:
    """Resolve beside the target, check every jar, and only then let the target appear, in one rename."""
    for abandoned in target.parent.glob(f"{target.name}.partial-*"):  # of a fetch that was killed; we hold the lock
        shutil.rmtree(abandoned)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{target.name}.partial-") as temporary:
        fetched = Path(temporary) / "jars"
        fetched.mkdir()
        resolve(fetched)
        if found := differences(fetched, pinned):
            listing = "\n".join(f"  {line}" for line in found)
            raise Unavailable(
                f"the fetched jars of Kafka {KAFKA_VERSION} are not the pinned ones and were thrown away:\n{listing}"
            )
        if target.exists():
            target.rename(Path(temporary) / "damaged")
        fetched.rename(target)


def _ivy_resolver(environ: Mapping[str, str]) -> Resolver:
    java = find_java(environ)
    settings = environ.get(IVY_VARIABLE)
    if settings and not Path(settings).is_file():
        raise Unavailable(f"{IVY_VARIABLE} is {settings}, which is not a file")

    def resolve(into: Path) -> None:
        ivy = _pyspark_jar("ivy")
        command = [str(java), f"-Divy.default.ivy.user.dir={into.parent / 'ivy'}", "-jar", str(ivy)]
        command += ["-settings", settings] if settings else []
        command += ["-dependency", *KAFKA_MODULE, "-confs", "default", "-types", "jar", "bundle"]
        command += ["-retrieve", f"{into}/[artifact]-[revision](-[classifier]).[ext]"]
        _run_ivy(command)

    return resolve


def _run_ivy(command: list[str]) -> None:
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=RESOLVE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"fetching Kafka {KAFKA_VERSION} did not end within {RESOLVE_TIMEOUT_S} s") from error
    if answer.returncode != 0:
        reasons = [line.strip() for line in (answer.stdout + answer.stderr).splitlines() if line.strip()][-12:]
        raise Unavailable(
            f"fetching Kafka {KAFKA_VERSION} failed (Ivy's exit code {answer.returncode}):\n"
            + "\n".join(f"  {line}" for line in reasons)
            + f"\nbehind a mirror set {IVY_VARIABLE} to an ivysettings.xml, without a network set {JARS_VARIABLE} to a"
            " directory of Kafka's jars; a proxy is set with JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=..."
        )


def _pyspark_jar(artifact: str) -> Path:
    found = sorted(_pyspark_jars().glob(f"{artifact}-[0-9]*.jar"))
    if not found:
        raise Unavailable(
            f"{_pyspark_jars()} has no {artifact}-*.jar; this needs the pyspark that floodmark[local] pins"
        )
    return found[-1]


@cache
def _pyspark_jars() -> Path:
    spec = util.find_spec("pyspark")  # found, not imported: importing takes a second and we want files only
    if spec is None or spec.origin is None:
        raise Unavailable("pyspark is not installed, and ZooKeeper runs from its jars; install floodmark[local]")
    return Path(spec.origin).parent / "jars"
