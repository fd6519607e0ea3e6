"""What the tests of the supervisor share."""

import pytest
from support.supervised import PRELUDE, Supervised


@pytest.fixture
def supervise(tmp_path, child_environment):
    """Start `resilient run [options] -- python -c script [arguments]`."""
    started = []

    def start(script, *options, prelude=PRELUDE, arguments=(), **environment):
        child = child_environment | environment
        for name in ("RESILIENT_HEARTBEAT", "PYTHONUNBUFFERED"):
            child.pop(name, None)
        run = Supervised(tmp_path / "run", child, options, script, prelude, arguments)
        started.append(run)
        return run

    yield start
    for run in started:
        run.clean_up()
