"""The differences of two lists of facts name each fact that differs, and no other."""

from hypothesis import given
from hypothesis import strategies as st

from resilient.state.comparison import differences

LEAF = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
VALUE = LEAF | st.lists(LEAF, max_size=3)
NAME = st.text("abc_", min_size=1, max_size=5)


@given(st.dictionaries(NAME, VALUE, min_size=1), st.data())
def test_one_changed_leaf_is_what_is_named(facts, data):
    name = data.draw(st.sampled_from(sorted(facts)))
    other = data.draw(VALUE.filter(lambda x: repr(x) != repr(facts[name])))
    assert differences(facts, dict(facts)) == []
    (line,) = differences(facts, facts | {name: other})
    assert line.startswith(f"{name}: the checkpoint has ")


@given(VALUE, VALUE)
def test_a_fact_that_only_one_has_is_named(value, inside):
    found = differences({"a": 1}, {"a": 1, "b": value, "b.c": inside, "b[0]": inside})
    if value is not None:  # as if it were not there
        assert [line.partition(":")[0] for line in found] == ["b"]
