"""A mean of decimals from a sum and a count is rounded twice; within the bound that is kept, that is rounding once."""

from decimal import ROUND_HALF_UP, Context, localcontext
from decimal import Decimal as Number

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from floodmark.query.kinds import Decimal, quotient

EXACT = Context(prec=200)


def rounded(value: Number, scale: int) -> Number:
    return value.quantize(Number(1).scaleb(-scale), rounding=ROUND_HALF_UP)


@settings(max_examples=1_000)
@given(
    precision=st.integers(1, 23),
    scale=st.integers(0, 6),
    last_digits=st.integers(-(10**9), 10**9),
    beside=st.integers(-1, 1),
    count=st.one_of(st.integers(1, 10**4), st.integers(1, 10**15)),
)
def test_rounding_twice_is_rounding_once_while_rows_are_few_enough(
    precision: int, scale: int, last_digits: int, beside: int, count: int
) -> None:
    """INV-12 for avg: the condition under which the planner merges means of decimals.

    Only means next to half of the last digit could go wrong, so those are tried.
    """
    assume(scale <= precision)
    total = (2 * last_digits + 1) * count // (2 * 10**4) + beside
    first = quotient(Decimal(min(precision + 10, 38), scale), Decimal(20, 0)).scale
    spare = first - (scale + 4)
    assume(spare >= 1 and count < 10**spare)
    with localcontext(EXACT):
        mean = Number(total).scaleb(-scale) / count
        assert rounded(rounded(mean, first), scale + 4) == rounded(mean, scale + 4)
