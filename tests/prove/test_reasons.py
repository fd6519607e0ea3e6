"""The likely causes of a difference, by the evidence."""

from pathlib import Path

import pytest

from resilient.prove.reasons import Evidence, reasons
from resilient.prove.recorded import Difference, Place
from resilient.prove.suspects import Suspect

pytestmark = pytest.mark.once

KERNEL = ("variables/dense/kernel",)
END = Place("runs/a", 0, 0, 0, at_end=True)


def at(step, leaves=KERNEL):
    return Difference(Place("runs/a", step, 0, step), leaves)


def suspect(kind, line=3):
    return Suspect(kind, Path("train.py"), line, "call()")


@pytest.mark.parametrize(
    ("evidence", "words", "lines"),
    [
        (
            Evidence(at(0), at(0), None, None, seeds=False),
            "keras.utils.set_random_seed",
            (),
        ),
        (
            Evidence(at(0), at(0), None, None),
            "before the first step, in variables/dense/kernel",
            (),
        ),
        (
            Evidence(at(1), at(1), at(1, ()), None, (), [suspect("unseeded")]),
            "its data is not seeded",
            ("train.py:3: call()",),
        ),
        (
            Evidence(at(4), at(4), None, None, (), [suspect("time")]),
            "depends on the time",
            ("train.py:3: call()",),
        ),
        (Evidence(at(4), at(4), None, None), "resilient.deterministic", ()),
        (
            Evidence(at(7), None, None, at(7, ()), (), [suspect("generator")]),
            "its data. Batches differ from step 7",
            ("train.py:3: call()",),
        ),
        (
            Evidence(at(7), None, None, None, ["Not bit-exact: Counting.counted"]),
            "state that is not captured",
            ("Not bit-exact: Counting.counted",),
        ),
        (
            Evidence(at(7, ("callbacks/0/train.Rate",)), None, None, None),
            "callbacks/0/train.Rate. Give it state_dict",
            (),
        ),
        (
            Evidence(Difference(END, KERNEL), None, None, None),
            "values that no checkpoint holds",
            (),
        ),
        (
            Evidence(at(7), Difference(END, KERNEL), None, None),
            "what it does after training changes variables/dense/kernel",
            (),
        ),
        (
            Evidence(at(7), None, None, None, (), [suspect("attempts")]),
            "the number of attempts",
            ("train.py:3: call()",),
        ),
    ],
)
def test_the_likeliest_comes_first(evidence, words, lines):
    first = reasons(evidence)[0]
    assert words in first.text
    assert first.lines == lines


def test_no_evidence_is_no_reason():
    assert reasons(Evidence(at(7), None, None, None)) == []


def test_what_is_not_known_of_the_batches_is_not_claimed():
    (known,) = reasons(Evidence(at(4), at(4), None, None))
    (unknown,) = reasons(Evidence(at(4), at(4), None, None, drawn=False))
    assert "batches are the same" in known.text
    assert "batches" not in unknown.text.replace("batch 4", "")
