"""From a SELECT to a plan that reads as little as it can: which files of which view, and what of the base table."""
