"""The tests, and what they stand on: support/ for the suites, bench/ for the measurements."""
