"""A container's health: exits 0 when /readyz is content, else 1 with the reasons, which `docker inspect` shows."""

import http.client
import os
import sys

TIMEOUT_S = 3


def main() -> int:
    """Ask over loopback, so that the answer is this container's own."""
    connection = http.client.HTTPConnection("127.0.0.1", int(os.environ["FLOODMARK_HTTP__PORT"]), timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
        sys.stdout.write(answer.read().decode(errors="replace"))
    except (OSError, http.client.HTTPException) as error:
        sys.stdout.write(f"/readyz on port {connection.port} does not answer: {error}")
        return 1
    finally:
        connection.close()
    return 0 if answer.status == http.HTTPStatus.OK else 1


if __name__ == "__main__":
    sys.exit(main())
