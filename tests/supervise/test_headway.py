"""What counts as progress, and backoff, which starts again with it."""

from pathlib import Path

import pytest

from resilient.supervise.backoff import Backoff
from resilient.supervise.headway import Gain, Headway

pytestmark = pytest.mark.once

RUN, OTHER = Path("/runs/one"), Path("/runs/two")


def saved(step):
    return {"event": "saved", "step": step}


def failed(step):
    return {"event": "failed", "step": step}


def test_nothing_is_known_of_a_script_without_directory():
    assert Headway().after(None, [], [], 5) == Gain(step=False, checkpoint=False)


def test_checkpoints_from_before_are_no_progress_of_the_first_attempt():
    headway = Headway()
    made = headway.after(RUN, [100, 200], [{"event": "restored", "step": 200}], 210)
    assert made == Gain(step=True, checkpoint=False)
    made = headway.after(RUN, [100, 200], [], 205)
    assert made == Gain(step=False, checkpoint=False)


def test_a_newer_checkpoint_is_progress_by_its_event_or_by_the_listing():
    headway = Headway()
    assert headway.after(RUN, [100], [saved(100)], 110).checkpoint
    assert not headway.after(RUN, [100], [], 110).checkpoint
    assert headway.after(RUN, [200], [], 210).checkpoint
    assert headway.after(RUN, [200], [saved(300)], 310).checkpoint
    assert not headway.after(RUN, [200], [saved(300)], 310).checkpoint


def test_a_later_step_is_progress_by_the_heartbeat_or_by_an_event():
    headway = Headway()
    assert headway.after(RUN, [], [failed(120)], 118).step
    assert not headway.after(RUN, [], [failed(120)], 119).step
    assert headway.after(RUN, [], [failed(121)], 119).step
    assert headway.steps == {RUN: 121}


def test_each_directory_has_its_own_progress():
    headway = Headway()
    headway.after(RUN, [500], [saved(500)], 500)
    assert headway.after(OTHER, [10], [saved(10)], 10) == Gain(True, True)
    assert headway.after(RUN, [500], [], 500) == Gain(False, False)


@pytest.mark.parametrize(
    ("failures", "longest"), [(0, 1), (1, 2), (2, 4), (8, 256), (9, 300), (9999, 300)]
)
def test_backoff_doubles_up_to_a_limit_with_full_jitter(failures, longest):
    backoff = Backoff(base=1, longest=300)
    assert backoff.delay(failures, 0.0) == 0
    assert backoff.delay(failures, 0.5) == longest / 2
    assert backoff.delay(failures, 1.0) == longest
