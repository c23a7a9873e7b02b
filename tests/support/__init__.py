"""What the test suites share: waiting for conditions, claims on scenarios, real servers."""
