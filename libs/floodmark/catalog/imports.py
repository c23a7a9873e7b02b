"""What an import has to know of the files that it names."""

from collections.abc import Sequence

from floodmark.core.buckets import DataFile
from floodmark.parquet.lake import Lake
from floodmark.parquet.locations import overlap, place_of

LOOKED_AT_ONCE = 1_000


class LakeFiles:
    """The files at one location, as `floodmark.ledger.exchange` asks for them."""

    def __init__(self, location: str) -> None:
        self._lake = Lake(location)
        self._place = place_of(location)

    def overlaps(self, location: str) -> bool:
        return overlap(self._place, place_of(location))

    def missing(self, files: Sequence[DataFile]) -> list[str]:
        gone = []
        for first in range(0, len(files), LOOKED_AT_ONCE):
            part = files[first : first + LOOKED_AT_ONCE]
            found = self._lake.files_at([file.name for file in part])
            gone += [f.name for f, there in zip(part, found, strict=True) if there is None or there.bytes != f.bytes]
        return gone
