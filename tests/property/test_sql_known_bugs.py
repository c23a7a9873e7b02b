"""Each fault that the SQL layer once had is found again by the generator of the gate, within the gate's size."""

import pytest

from tests.support.sql_known_bugs import BUGS, Bug


@pytest.mark.parametrize("bug", BUGS, ids=str)
def test_a_known_bug_is_found_again(bug: Bug) -> None:
    """Without its mend. If not, the generator does not draw what it takes, and would not find the next one either."""
    assert bug.found_by() is not None, f"{bug} was not noticed within {bug.within} seeds"
