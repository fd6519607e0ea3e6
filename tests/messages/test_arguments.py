"""Wrong arguments of public functions: what is wrong, what was received, what to do."""

import re

import numpy as np
import pytest

import resilient
from resilient import Preemption, Rollback, adaptive, best, every
from resilient.errors import NotSupportedError, ResilientError

DIRECTORY = "runs/never-made"
X = np.zeros((4, 1))


def fit(**options):
    options = {"checkpoint_dir": DIRECTORY, **options}
    return lambda: resilient.ResilientFit.check_options(**options)


def enabled(**options):
    return resilient.enabled(DIRECTORY, **options).__enter__


def loop(data, **options):
    return lambda: resilient.Run(DIRECTORY).loop(data, epochs=1, **options)


@pytest.mark.once
@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (lambda: best(1, 3), ValueError, "needs the name of a metric"),
        (lambda: best(1, "reach"), ValueError, "whether less or more"),
        (lambda: best(1, "loss", "low"), ValueError, "whether less or more"),
        (lambda: best(0, "loss"), ValueError, "must be an integer of 1 or more"),
        (lambda: adaptive(overhead=2), ValueError, "above 0 and below 1."),
        (every, ValueError, "`every` needs an interval"),
        (lambda: every(minutes="3"), TypeError, "must be a number above 0"),
        (lambda: Rollback(5, skip=5), ValueError, "must reach beyond the bad batch"),
        (
            lambda: Preemption(signals=15),
            TypeError,
            "signals=...) must be a collection",
        ),
        (lambda: Preemption(signals=(0,)), ValueError, "signals that a process can"),
        (
            lambda: Preemption(notices=(3,)),
            TypeError,
            "notices=...) must be a collection",
        ),
        (fit(checkpoint_dir=3), TypeError, "directory is not a path"),
        (fit(checkpoint_dir=" "), ValueError, "directory is empty"),
        (
            fit(checkpoint_dir="s3://x", local_dir="gs://y"),
            NotSupportedError,
            "local path",
        ),
        (fit(save_freq="daily"), ValueError, "`save_freq` must be a number of batches"),
        (fit(keep=-1), ValueError, "or a policy such as latest(3)"),
        (fit(resume=True), ValueError, "Received: True"),
        (fit(resume="best"), ValueError, "but `keep` has none"),
        (fit(resume="yes"), ValueError, '`resume` must be "auto", "best"'),
        (fit(replay_data=1), TypeError, "must be True or False"),
        (fit(keep_compiled=1), TypeError, "`keep_compiled` must be True or False"),
        (fit(on_event=3), TypeError, "must be callable"),
        (fit(on_save_error="stop"), ValueError, 'must be "raise" or "warn"'),
        (fit(preemption=30), TypeError, "must be a Preemption or None"),
        (fit(allow="data"), TypeError, "must be a set of names"),
        (fit(allow={"batchsize"}), ValueError, "Received: 'batchsize'\nUse one of"),
        (fit(stateful=[1]), TypeError, "`stateful` must map names to objects"),
        (fit(start_from=3), ValueError, "path of a directory or a file"),
        (fit(start_from="a", start_layers=3), ValueError, "must be the path of"),
        (fit(start_layers="a"), ValueError, "path of a directory or a file"),
        (fit(start_from="a", start_layers="("), ValueError, "missing ), unterminated"),
        (fit(on_nan="raise"), ValueError, '"rollback" or a Rollback(...)'),
        (fit(on_nan="stop", loss_spike=1), ValueError, "must be a factor above 1"),
        (enabled(resume="never"), ValueError, '`resume` must be "auto".'),
        (lambda: resilient.export("a", "m.txt"), ValueError, "which format to write"),
        (lambda: resilient.deterministic(seed=1.5), TypeError, "`seed` must be an"),
    ],
)
def test_a_wrong_argument_says_what_is_wrong(call, kind, words):
    require_message(call, kind, words)


def require_message(call, kind, words):
    with pytest.raises(kind, match=re.escape(words)) as found:
        call()
    problem, *others = str(found.value).splitlines()
    assert problem.endswith(".")
    assert others  # what was received, or what to do


@pytest.mark.spread
@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        (loop([X, X]), TypeError, "A list of arrays is ambiguous"),
        (loop([(X, X)], batch_size=2), ValueError, "`batch_size` is for arrays"),
        (loop((X, X), shuffle="all"), ValueError, "`shuffle` must be True, False"),
        (loop(None), ValueError, "A loop iterates over one dataset"),
        (lambda: resilient.Run("a", thing=3), TypeError, "its type is not known"),
        (lambda: resilient.Run("a", ä=3), ValueError, "cannot be used in a checkpoint"),
        (
            lambda: resilient.Run("a", allow={"callbacks"}),
            ValueError,
            "`allow` has a name that is unknown here",
        ),
    ],
)
def test_a_wrong_argument_of_a_loop_says_what_is_wrong(call, kind, words):
    require_message(call, kind, words)


@pytest.mark.spread
def test_what_is_called_at_the_wrong_time_says_when_to_call_it(tmp_path):
    run = resilient.Run(tmp_path / "run")
    checkpoints = resilient.Checkpoints(tmp_path / "checkpoints", [])
    for call, todo in [
        (lambda: run.batches(X), "Write `for epoch in run.epochs(n):` around it."),
        (run.save, "Write `with run:` around it, or use run.loop."),
        (lambda: checkpoints.save(1), "Write `with resilient.Checkpoints(...) as"),
    ]:
        with pytest.raises(ResilientError, match=re.escape(todo)):
            call()
