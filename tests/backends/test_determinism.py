"""What makes a computation repeat is set, or refused; and known at a resume."""

import json
import os
import subprocess
import sys
import types

import pytest
from support import fitting

import resilient
from resilient import NotExactWarning, ResilientError, deterministic
from resilient.backends import determinism
from resilient.backends.determinism import in_effect

# Keras on NumPy 2 (keras.Variable.__array__).
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't")

FLAG = "--xla_gpu_deterministic_ops"


@pytest.fixture
def module(backend):
    """The module of `backends.determinism` about this backend."""
    in_effect()  # imports it, and starts the devices
    return sys.modules[f"resilient.backends.determinism.{backend}"]


# In processes of their own ----------------------------------------------------------

CHILD = """
import json, os, random, sys
import resilient

directory, threads, cores = sys.argv[1:]
if cores:
    os.sched_setaffinity(0, [int(cores)])
resilient.deterministic(7, threads=int(threads))

from support import fitting
import keras, numpy as np
from resilient.backends.determinism import in_effect

drawn = [random.random(), np.random.random(), keras.random.normal((2,))]
if "torch" in sys.modules:
    drawn.append(sys.modules["torch"].rand(2))
# Sums that each backend splits by its threads, or some of them.
large = np.random.default_rng(0).normal(size=5_000_000).astype("float32")
matrix = large[:4_096_000].reshape(4096, 1000)
sums = [keras.ops.sum(large), keras.ops.matmul(large[None, :4096], matrix)]
net = fitting.model()
fitting.fit(net, directory, epochs=2)
values = [np.asarray(keras.ops.convert_to_numpy(v)) for v in drawn + sums]
found = {
    "bytes": [v.tobytes().hex() for v in values + fitting.values(net)],
    "in effect": in_effect(),
    "XLA_FLAGS": os.environ["XLA_FLAGS"],
}
print(json.dumps(found))
"""


def start(environment, directory, threads, cores=""):
    left_to_us = {"NPROC", "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"}
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", CHILD, directory, str(threads), cores],
        env={k: v for k, v in environment.items() if k not in left_to_us},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def result(process):
    output, errors = process.communicate(timeout=240)
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1])


@pytest.mark.long
def test_two_fresh_runs_are_equal_on_other_numbers_of_cores(
    tmp_path, child_environment, backend
):
    """And a resume under other settings is said once, by name."""
    threads = in_effect()["threads"] + 1
    # Linux alone lets a process have fewer cores.
    one = str(min(os.sched_getaffinity(0))) if sys.platform == "linux" else ""
    processes = [
        start(child_environment, tmp_path / "all", threads),
        start(child_environment, tmp_path / "one", threads, one),
    ]
    first, second = (result(process) for process in processes)
    assert first == second
    assert first["in effect"]["threads"] == threads
    flags = [child_environment["XLA_FLAGS"], *([f"{FLAG}=true"] * (backend != "torch"))]
    assert first["XLA_FLAGS"].split() == flags

    with pytest.warns(NotExactWarning, match="these settings changed") as found:
        fitting.fit(fitting.model(), tmp_path / "all", epochs=3)
    (warning,) = (w for w in found if w.category is NotExactWarning)
    lines = [line.strip() for line in str(warning.message).splitlines()[1:]]
    live = in_effect()
    assert lines == [
        f"{name}: the checkpoint has {value}, this run has {live[name]}"
        for name, value in first["in effect"].items()
        if value != live[name]
    ]
    assert len(lines) >= 1
    fitting.fit(fitting.model(), tmp_path / "all", epochs=4)  # and not again


# Refusals: nothing is changed -------------------------------------------------------


def refused(error, *args, **given):
    """Call it; what it says, once it is clear that nothing was changed."""
    before = in_effect(), dict(os.environ)
    with pytest.raises(error) as found:
        deterministic(*args, **given)
    assert (in_effect(), dict(os.environ)) == before
    return str(found.value)


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"seed": True}, TypeError),
        ({"seed": 1.0}, TypeError),
        ({"seed": "7"}, TypeError),
        ({"seed": -1}, ValueError),
        ({"seed": 2**32}, ValueError),
        ({"threads": True}, TypeError),
        ({"threads": 2.0}, TypeError),
        ({"threads": 0}, ValueError),
    ],
)
def test_arguments_that_mean_nothing_are_refused(given, error):
    ((name, value),) = given.items()
    message = refused(error, **given)
    assert f"`{name}`" in message
    assert f"Received: {value!r}" in message


def test_threads_are_refused_once_they_have_started(backend, module):
    if backend == "torch":
        pytest.skip("torch changes the number at any time")
    message = refused(ResilientError, threads=in_effect()["threads"] + 1)
    assert "was called too late" in message
    assert "top of the script" in message


def test_it_is_refused_once_a_gpu_has_started(backend, module, monkeypatch):
    on_a_gpu(backend, module, monkeypatch)
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    message = refused(ResilientError)
    assert "was called too late" in message
    assert "top of the script" in message


def on_a_gpu(backend, module, monkeypatch):
    """As if there were one, and it had been used."""
    if backend == "tensorflow":
        monkeypatch.setattr(module, "_on_gpu", lambda: True)
    elif backend == "jax":
        monkeypatch.setattr(module.jax, "default_backend", lambda: "gpu")
    else:
        monkeypatch.setattr(module.torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(module.torch.cuda, "is_initialized", lambda: True)


def test_on_a_gpu_its_kernels_count_and_threads_do_not(backend, module, monkeypatch):
    on_a_gpu(backend, module, monkeypatch)
    found = in_effect()
    assert found["device"] == "gpu"
    assert "threads" not in found
    assert len(found) > 1


def test_a_workspace_of_cublas_that_does_not_repeat_is_refused(
    backend, module, monkeypatch
):
    if backend != "torch":
        pytest.skip("only torch has it")
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":0:0")
    assert "CUBLAS_WORKSPACE_CONFIG=:0:0" in refused(ResilientError)


def test_another_number_of_threads_in_the_environment_is_refused(
    backend, module, monkeypatch
):
    if backend != "jax":
        pytest.skip("TensorFlow and torch have functions that set it")
    not_started = types.SimpleNamespace(backends_are_initialized=lambda: False)
    monkeypatch.setattr(module, "xla_bridge", not_started)
    monkeypatch.setenv("NPROC", "3")
    message = refused(ResilientError, threads=4)
    assert "Received: NPROC=3" in message
    assert "NPROC=4" in message


# XLA_FLAGS --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("", f"{FLAG}=true"),
        ("--xla_dump_to=/tmp", f"--xla_dump_to=/tmp {FLAG}=true"),
        (f"{FLAG}", f"{FLAG}"),
        (f"{FLAG}=1", f"{FLAG}=1"),
        (f"{FLAG}=false {FLAG}=true", f"{FLAG}=false {FLAG}=true"),
        (f"{FLAG}_not=false", f"{FLAG}_not=false {FLAG}=true"),
    ],
)
def test_flags_of_xla_are_added_to(monkeypatch, flags, expected):
    monkeypatch.setenv("XLA_FLAGS", flags)
    assert determinism.deterministic_xla_flags() == expected
    monkeypatch.setenv("XLA_FLAGS", expected)
    assert determinism.deterministic_xla_flags() == determinism.xla_flags() == expected


@pytest.mark.parametrize(
    ("flags", "todo"),
    [
        (f"{FLAG}=false", f"Remove {FLAG}"),
        (f"{FLAG}=true {FLAG}=0", f"Remove {FLAG}"),
        ("/etc/xla_flags", "not the name of a file"),
    ],
)
def test_flags_of_xla_that_cannot_be_added_to_are_refused(
    backend, module, monkeypatch, flags, todo
):
    if backend == "torch":
        pytest.skip("only TensorFlow and JAX use XLA")
    monkeypatch.setenv("XLA_FLAGS", flags)
    message = refused(ResilientError)
    assert f"Received: XLA_FLAGS={flags}" in message
    assert todo in message


def test_threads_in_the_environment_count_where_they_are_a_number(monkeypatch):
    for text, expected in (("3", 3), ("0", None), ("", None), ("many", None)):
        monkeypatch.setenv("NPROC", text)
        assert determinism.asked_for("NPROC") == expected
        assert determinism.threads_by("NPROC") == (expected or determinism.processors())


def test_it_is_a_public_name():
    assert resilient.deterministic is deterministic
