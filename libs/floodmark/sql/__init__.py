"""Reading SQL as a syntax tree: what a view's definition says, or the rule it breaks."""
