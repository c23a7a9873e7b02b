"""Times that are whole numbers, whatever they count: a range of them is a range of milliseconds, rounded outwards."""

from hypothesis import given
from hypothesis import strategies as st

from floodmark.core.column_types import TIME_UNITS
from floodmark.query.bounds import TimeColumn
from floodmark.query.shapes import expression

_OPERATORS = {
    ">": lambda one, other: one > other,
    ">=": lambda one, other: one >= other,
    "<": lambda one, other: one < other,
    "<=": lambda one, other: one <= other,
    "=": lambda one, other: one == other,
}
_NEAR = st.integers(-3, 3)
_MS = st.sampled_from([-86_400_000, -1_000, -1, 0, 1, 999, 1_000, 1_714_521_600_000])


@given(
    st.sampled_from(sorted(TIME_UNITS)),
    st.sampled_from(sorted(_OPERATORS)),
    _MS,
    st.tuples(_NEAR, _NEAR),
    st.booleans(),
)
def test_no_row_that_satisfies_a_condition_is_outside_and_every_row_inside_does(
    unit_name: str, operator: str, ms: int, offsets: tuple[int, int], on_the_left: bool
) -> None:
    """INV-12. The outer range says what need not be read, the inner one which buckets are taken from a view whole."""
    unit = TIME_UNITS[unit_name]
    bound = ms * 1_000_000 // unit.ns + offsets[0]
    value = bound + offsets[1]
    row_ms = value * unit.ns // 1_000_000
    satisfied = _OPERATORS[operator](value, bound) if on_the_left else _OPERATORS[operator](bound, value)
    text = f"t {operator} {bound}" if on_the_left else f"{bound} {operator} t"
    found = TimeColumn("t", "int64", unit).bounds(expression(text))
    assert found is not None
    if satisfied:
        assert found.outer is not None
        assert found.outer.start_ms <= row_ms < found.outer.end_ms
    elif found.inner is not None:
        assert not found.inner.start_ms <= row_ms < found.inner.end_ms
