"""The real code under a schedule that the test decides."""
