# Debian's Python 3.11 where python:3.11-slim-bookworm has its own: the same commands, headers to compile against, CAs.
FROM floodmark/bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates libpython3.11-dev python3-pip python3.11-venv \
    && apt-get clean && rm -rf /var/lib/apt/lists/* /usr/lib/python3.11/config-*/*.a \
    && ln -s /usr/bin/python3.11 /usr/local/bin/python
CMD ["python"]
