"""The scheduler: decides what to build, in which lane, and gives it out as tasks."""
