"""What counts as progress."""

from pathlib import Path

import pytest

from resilient.supervise.headway import Gain, Headway

pytestmark = pytest.mark.once

RUN, OTHER = Path("/runs/one"), Path("/runs/two")


def test_nothing_is_known_of_a_script_without_directory():
    assert Headway().after(None, [], [5]) == Gain(step=False, checkpoint=False)


def test_checkpoints_from_before_are_no_progress_of_the_first_attempt():
    headway = Headway()
    assert headway.after(RUN, [100, 200], [200, 210]) == Gain(True, False)
    assert headway.after(RUN, [100, 200], [205]) == Gain(False, False)


def test_a_newer_checkpoint_is_progress():
    headway = Headway()
    headway.after(RUN, [100], [110])
    assert not headway.after(RUN, [100], [110]).checkpoint
    assert headway.after(RUN, [100, 200], [210]).checkpoint
    assert not headway.after(RUN, [200], [210]).checkpoint
    assert not headway.after(RUN, [150], [210]).checkpoint
    assert not headway.after(RUN, [], [210]).checkpoint


def test_the_first_checkpoint_is_progress():
    headway = Headway()
    headway.after(RUN, [], [])
    assert headway.after(RUN, [0], []).checkpoint


def test_a_later_step_is_progress():
    headway = Headway()
    assert headway.after(RUN, [], [118, 120]).step
    assert not headway.after(RUN, [], [119, 120]).step
    assert headway.after(RUN, [], [119, 121]).step
    assert headway.steps == {RUN: 121}


def test_each_directory_has_its_own_progress():
    headway = Headway()
    headway.after(RUN, [500], [500])
    assert headway.after(OTHER, [10], [10]) == Gain(True, True)
    assert headway.after(RUN, [500], [500]) == Gain(False, False)
    assert headway.after(OTHER, [10], [10]) == Gain(False, False)
