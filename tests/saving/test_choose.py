"""Which checkpoint is used, and what is said of those that are not."""

import pytest
from support.checkpoint_samples import filled, holds

from resilient.saving.choose import find
from resilient.storage.checkpoint import Reader
from resilient.telemetry.events import Events, read_events

pytestmark = pytest.mark.once

READER = Reader(lambda checkpoint: checkpoint.step)


def test_who_falls_back_records_which_checkpoint_and_why(tmp_path):
    store = filled(tmp_path, 10, 20)
    (tmp_path / "step-00000020" / "run.json").unlink()
    checkpoint, read = find(store, "auto", READER, Events(tmp_path))
    assert (checkpoint.step, read) == (10, 10)
    assert holds(checkpoint)
    (event,) = read_events(tmp_path)
    assert event["event"] == "fell back"
    assert event["checkpoint"] == "step-00000020"
    assert event["reason"] == "run.json is missing"
