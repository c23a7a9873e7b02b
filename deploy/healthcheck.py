"""A container's health: exits 0 when /readyz is content, else 1 with the reasons, which `docker inspect` shows.

It runs every few seconds in every container, so it takes nothing but a socket: an HTTP client would cost more to import
than all the rest, and a dozen containers a good part of a core.
"""

import os
import socket
import sys

TIMEOUT_S = 3


def main() -> int:
    """Ask over loopback, so that the answer is this container's own."""
    port = int(os.environ["FLOODMARK_HTTP__PORT"])
    try:
        with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as connection:
            connection.sendall(b"GET /readyz HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
            with connection.makefile("rb") as answer:
                head, _, body = answer.read().partition(b"\r\n\r\n")
    except OSError as error:
        sys.stdout.write(f"/readyz on port {port} does not answer: {error}")
        return 1
    sys.stdout.write(body.decode(errors="replace"))
    return 0 if head.split()[1:2] == [b"200"] else 1


if __name__ == "__main__":
    sys.exit(main())
