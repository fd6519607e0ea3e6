"""On JAX, what is compiled is kept beside the checkpoints, for the next start."""

import os
import shutil
import signal
import subprocess
import sys

import keras
import pytest
from support import fitting

pytestmark = pytest.mark.skipif(
    os.name == "nt", reason="nothing is kept on Windows, and nothing is killed"
)
on_jax = pytest.mark.skipif(keras.backend.backend() != "jax", reason="of JAX")

# Prints how many programs were loaded, and a digest of the state.
PROGRAM = """
import hashlib, os, signal, sys
import jax
from support import fitting
from support.fitting import Do

loaded = []
jax.monitoring.register_event_listener(
    lambda name, **_: loaded.append(name) if name.endswith("/cache_hits") else None
)
directory, kept, killed = sys.argv[1], sys.argv[2] == "kept", len(sys.argv) > 3
net = fitting.model(run_eagerly=False, seed=0 if os.path.exists(directory) else 5)
callbacks = [Do(lambda: os.kill(os.getpid(), signal.SIGKILL if killed else 0), 1, 3)]
given = {"callbacks": callbacks, "save_freq": 2, "keep_compiled": kept}
fitting.fit(net, directory, **given)
bits = b"".join(value.tobytes() for value in fitting.values(net))
print(len(loaded), hashlib.sha256(bits).hexdigest())
"""


def trained(directory, kept, *killed):
    """What the program printed, in a process of its own."""
    without = {k: v for k, v in os.environ.items() if "COMPILATION_CACHE" not in k}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(directory), kept, *killed],
        env=without | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == (-signal.SIGKILL if killed else 0)
    return done.stdout.split()


@on_jax
def test_killed_and_resumed_equals_the_run_alone(tmp_path):
    """With a warm cache and with a cold one, bit for bit; a copy of a run is cold."""
    loaded, alone = trained(tmp_path / "alone", "nothing")
    assert loaded == "0"
    assert not (tmp_path / "alone" / "compiled").exists()
    assert trained(tmp_path / "warm", "kept", "killed") == []
    shutil.copytree(tmp_path / "warm", tmp_path / "cold")
    loaded, warm = trained(tmp_path / "warm", "kept")
    assert (int(loaded) > 0, warm) == (True, alone)
    assert trained(tmp_path / "cold", "kept") == ["0", alone]


@pytest.fixture
def settings():
    """JAX's settings, without the directory that all tests have."""
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    name, before = "jax_compilation_cache_dir", jax.config.jax_compilation_cache_dir
    jax.config.update(name, None)
    yield lambda: {
        name: getattr(jax.config, name)
        for name in (
            "jax_compilation_cache_dir",
            "jax_persistent_cache_min_compile_time_secs",
            "jax_persistent_cache_enable_xla_caches",
        )
    }
    jax.config.update(name, before)
    compilation_cache.reset_cache()


def seen_while(settings, directory, **given):
    """JAX's settings in the middle of a fit."""
    found = []
    callback = fitting.Do(lambda: found.append(settings()))
    fitting.fit(fitting.model(), directory, callbacks=[callback], **given)
    return found[0]


@on_jax
def test_settings_are_as_before_afterwards(tmp_path, settings):
    """Also where training fails."""
    before = settings()
    assert seen_while(settings, tmp_path / "run") != before
    assert settings() == before
    fitting.interrupted(tmp_path / "other")
    assert settings() == before


@on_jax
def test_each_run_has_its_own(tmp_path, settings):
    """Two in one process, though JAX holds on to the first directory."""
    nets = [fitting.model(run_eagerly=False) for _ in range(2)]
    for net, name in zip(nets, "ab", strict=True):
        fitting.fit(net, tmp_path / name)
    for name in "ab":
        assert list((tmp_path / name / "compiled").glob("*-cache"))


@on_jax
def test_it_can_be_left_off(tmp_path, settings):
    """No setting is touched, and there is no directory."""
    before = settings()
    assert seen_while(settings, tmp_path, keep_compiled=False) == before
    assert not (tmp_path / "compiled").exists()


@on_jax
@pytest.mark.parametrize("off", [False, True])
def test_the_users_own_setting_has_precedence(tmp_path, settings, off):
    """A directory of JAX's own, or none at all."""
    import jax

    if off:
        jax.config.update("jax_enable_compilation_cache", False)
    else:
        jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    try:
        before = settings()
        assert seen_while(settings, tmp_path / "run") == before
        assert not (tmp_path / "run" / "compiled").exists()
    finally:
        jax.config.update("jax_enable_compilation_cache", True)


@on_jax
def test_a_directory_that_others_may_write_to_stops_nothing(tmp_path, settings):
    """Training goes on without it."""
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled").chmod(0o777)
    before = settings()
    assert seen_while(settings, tmp_path) == before


@pytest.mark.skipif(keras.backend.backend() == "jax", reason="of torch and TensorFlow")
def test_where_nothing_is_compiled_ahead(tmp_path):
    """TensorFlow and PyTorch keep nothing, and need no directory."""
    fitting.fit(fitting.model(), tmp_path)
    assert not (tmp_path / "compiled").exists()
