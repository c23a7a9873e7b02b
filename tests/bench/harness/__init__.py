"""How a figure is declared, measured, kept and rendered.

figures.py    what a suite declares: named figures with a goal, measured several times
results.py    the rows written to build/bench/<suite>.json
runner.py     runs a suite; a figure that fails does not stop the others
document.py   docs/benchmarks.md, one section for each suite
"""
