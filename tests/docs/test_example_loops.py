"""Examples of loops by hand do what they promise."""

import signal
from pathlib import Path

import keras
import pytest
from support import EXAMPLES
from test_examples import digest, run

# Name -> step to be killed at, options.
LOOPS = {
    "tensorflow": {"tensorflow_guide.py": (13, ("--way=after",)), "gan.py": (40, ())},
    "jax": {"jax_loop.py": (40, ())},
    "torch": {"torch_loop.py": (40, ())},
}[keras.backend.backend()]
FIRST, *OTHERS = LOOPS


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name", [FIRST, *(pytest.param(name, marks=pytest.mark.long) for name in OTHERS)]
)
def test_killed_in_mid_epoch_it_ends_with_the_digest_of_a_run_left_alone(
    name: str, tmp_path: Path
) -> None:
    """The same command, killed by itself once, resumes and ends alike."""
    step, options = LOOPS[name]
    example = EXAMPLES / name
    # What the guide has is the reference: left alone it ends as with us.
    reference = ("--way=before",) if options else ()
    status, alone = run(example, tmp_path / "alone", *reference)
    assert status == 0, alone
    command = (example, tmp_path / "killed", *options)
    status, killed = run(*command, f"--kill-at={step}")
    assert status == -signal.SIGKILL, killed
    assert "digest" not in killed
    status, resumed = run(*command)
    assert status == 0, resumed
    assert "Resumed at step" in resumed
    assert digest(resumed) == digest(alone)
