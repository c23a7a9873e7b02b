"""The consistency service: turns changes of base tables into STALE marks, and sweeps for changes nobody reported."""
