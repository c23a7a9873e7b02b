"""As whom a session is opened, and through what."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Access:
    """Nothing given means: as anybody, in clear text. With a name, every node made is that name's alone."""

    username: str = ""
    password: str = field(default="", repr=False)
    former_password: str = field(default="", repr=False)
    """Also presented, so that nodes made under it can be given to the new one."""
    tls: bool = False
    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    key_password: str = field(default="", repr=False)
    check_hostname: bool = True

    def credentials(self) -> list[tuple[str, str]]:
        """As ZooKeeper's `digest` scheme wants them."""
        passwords = [password for password in (self.password, self.former_password) if password]
        return [("digest", f"{self.username}:{password}") for password in passwords]
