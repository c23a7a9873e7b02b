"""The layered mapping is a dictionary to whoever reads it, and never changes under anyone."""

from hypothesis import given
from hypothesis import strategies as st

from floodmark.core.layers import Layered

changes = st.dictionaries(st.text("abcdefgh", min_size=1, max_size=2), st.none() | st.integers(), max_size=12)


@given(st.dictionaries(st.text("abcdefgh", min_size=1, max_size=2), st.integers()), st.lists(changes, max_size=30))
def test_it_equals_a_dictionary_that_was_changed_the_same_way(
    base: dict[str, int], steps: list[dict[str, int | None]]
) -> None:
    layered, model = Layered(base), dict(base)
    for step in steps:
        before = dict(model)
        changed = layered.updated(step)
        model = {key: value for key, value in {**model, **step}.items() if value is not None}
        assert dict(layered.items()) == before, "what was there before is as it was"
        layered = changed
        assert (dict(layered.items()), set(layered), len(layered)) == (model, set(model), len(model))
        assert sorted(layered.values()) == sorted(model.values())
        for key in {*base, *step}:
            assert layered.get(key) == model.get(key)
            assert layered.get(key, -1) == model.get(key, -1)
            assert (key in layered) == (key in model)


def test_a_change_copies_what_changes_and_a_lookup_asks_few_dictionaries() -> None:
    """A thousand small changes of a large mapping: the large part is shared all the way."""
    large = Layered({str(n): n for n in range(100_000)})
    changed = large
    for n in range(1_000):
        changed = changed.updated({f"new{n}": n, str(n): None})
    assert changed._base is large._base
    assert len(changed._above) <= 11, "each layer is less than half the one below"
    assert (len(large), len(changed)) == (100_000, 100_000)
