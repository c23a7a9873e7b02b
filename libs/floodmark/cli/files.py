"""`floodmark files`: the current files of a view, for engines that read Parquet by themselves."""

import json
import sys
from typing import Annotated, Any

import typer

from floodmark.catalog.files import CurrentFiles, current_files
from floodmark.catalog.times import utc
from floodmark.cli.ledger import Directory, Hosts, opened_ledger, refusals_told


def files(
    view: Annotated[str, typer.Argument(help="A view.")],
    *,
    as_json: Annotated[bool, typer.Option("--json", help="With bucket, rows and bytes of each file.")] = False,
    zookeeper: Hosts = None,
    directory: Directory = None,
) -> None:
    """List the files of a view's VALID buckets, one a line: what DuckDB or Spark may read instead of the table.

    Buckets that are not VALID have no rows here. Standard error says which, because only the base table has them.
    """
    with refusals_told(), opened_ledger(zookeeper, directory) as ledger:
        found = current_files(ledger, view)
    if as_json:
        print(json.dumps(_facts(found), indent=2))
    else:
        for file in found.files:
            print(file.path)
    if found.left_out_ms:
        shown = ", ".join(utc(start) for start in found.left_out_ms[:5])
        more = f" and {len(found.left_out_ms) - 5} more" if len(found.left_out_ms) > 5 else ""
        print(f"not VALID, so not listed: {shown}{more}", file=sys.stderr)


def _facts(found: CurrentFiles) -> dict[str, Any]:
    return {
        "view": found.view,
        "location": found.location,
        "watermark_ms": found.watermark_ms,
        "left_out_ms": list(found.left_out_ms),
        "files": [{"path": f.path, "bucket_ms": f.bucket_ms, "rows": f.rows, "bytes": f.bytes} for f in found.files],
    }
