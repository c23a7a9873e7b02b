"""The pure core: decisions as functions of values. No I/O, no clock, no randomness, no client library."""
