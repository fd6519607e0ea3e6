"""Every check of this project; plain ``nox`` runs what a change has to pass.

Continuous integration runs the same, and ``exact``, ``docs``, ``demo``, the oldest
Keras, Keras's own tests, other Pythons and systems; and once a week what takes hours.

Tests that are marked ``spread`` are run on one backend each; ``tests_long`` and
``sources_long`` run the rest, of which continuous integration adds a share.

Each session builds the package and tests the installed wheel, not the checkout.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import nox

nox.needs_version = ">= 2025.5.1"
nox.options.default_venv_backend = "virtualenv"
nox.options.sessions = ["lint", "typing", "tests", "sources"]
nox.options.error_on_external_run = True

PYPROJECT = nox.project.load_toml("pyproject.toml")
CONSTRAINED = ("-c", "constraints.txt")
# tensorflow-cpu instead of the extra: a third of the download, the same library.
BACKENDS = {
    "tensorflow": (".", "tensorflow-cpu"),
    "jax": (".[jax]",),
    "torch": (".[torch]",),
}
# Beside them in the tests: tensorboard and Orbax for callbacks of Keras, optax for an
# example; flax, accelerate and lightning for what the documentation says of them;
# tensorstore for what JAX saved.
BESIDE = {
    "tensorflow": ("tensorboard",),
    "jax": ("flax", "optax", "orbax-checkpoint"),
    "torch": ("accelerate", "lightning", "tensorstore"),
}
each_backend = nox.parametrize("backend", list(BACKENDS), ids=list(BACKENDS))

# Tests of an `xdist_group` stay together, and share what one of them trained.
TWO = (
    *("-n", "2", "--dist", "loadgroup", "--durations=10"),
    *("-o", "tmp_path_retention_policy=failed"),  # or memory would soon be full
)
# What has no Keras in it is tested once, beside the backend that is done the soonest.
ONCE = "torch"
# Tests are compiled by the first session, though the environment may say otherwise.
KEEP_COMPILED = {"PYTHONDONTWRITEBYTECODE": ""}
KERAS = "https://github.com/keras-team/keras"  # for its tests: nightly builds have none

ONLY_ONE = """
import importlib.util, sys
names = {"tensorflow", "jax", "torch"} - {sys.argv[1]}
others = sorted(name for name in names if importlib.util.find_spec(name))
sys.exit(f"Other backends are installed here: {others}" if others else 0)
"""


def group(name: str) -> list[str]:
    return nox.project.dependency_groups(PYPROJECT, name)


def tested(backend: str) -> list[str]:
    """What the tests of a backend need."""
    return [*BACKENDS[backend], *BESIDE[backend], *group("test")]


def install(session: nox.Session, *requirements: str) -> None:
    """Install; and compile on every core, which pip does on one.

    But for what is large and hardly imported.
    """
    session.install("--no-compile", *CONSTRAINED, *requirements)
    session.run(
        *("python", "-m", "compileall", "-qq", "-j", "0"),
        *("-x", "/(tests?|moto|pip|setuptools|debugpy)/"),
        str(Path(session.virtualenv.location, "lib")),
        success_codes=[0, 1],  # some packages carry templates that are no Python
        silent=True,
    )


def in_memory() -> dict[str, str]:
    """Environment that keeps checkpoints off the disk, where memory has room for them.

    What a disk does is the same for every backend, and ``tests`` of one are on it; it
    would be flushed thousands of times in each of the others.
    """
    memory = Path("/dev/shm")  # noqa: S108 (pytest makes a private directory there)
    room = memory.is_dir() and shutil.disk_usage(memory).free > 4 * 2**30
    return {"PYTEST_DEBUG_TEMPROOT": str(memory)} if room else {}


def ended_well(arguments: Sequence[str]) -> list[int]:
    """Exit codes: a share of a long session may have no test of some backend (5)."""
    is_share = any(each.startswith("--session=long:") for each in arguments)
    return [0, 5] if is_share else [0]


def pytest(session: nox.Session, backend: str, *args: str, **env: str) -> None:
    """Run pytest from its own command, which leaves the checkout off sys.path."""
    session.run("python", "-c", ONLY_ONE, backend)
    env |= {"KERAS_BACKEND": backend, **KEEP_COMPILED}
    arguments = (*args, *session.posargs)
    session.run("pytest", *arguments, env=env, success_codes=ended_well(arguments))


def install_next_keras(session: nox.Session) -> None:
    """Put the latest nightly build of Keras in the place of the released one."""
    session.run("python", "-m", "pip", "uninstall", "-y", "keras", silent=True)
    session.install("--no-deps", "--pre", "--upgrade", "keras-nightly")
    session.run("python", "-m", "pip", "show", "keras-nightly")


def short(session: nox.Session) -> list[str]:
    """Only what the short session has, unless somebody names tests."""
    named = any(Path(arg.partition("::")[0]).exists() for arg in session.posargs)
    return [] if named else ["--session=short"]


def normal(session: nox.Session, backend: str) -> None:
    """The tests, where only this backend is installed.

    With torch also those marked ``once``, which have nothing to do with the backend;
    and its checkpoints are on the disk. ``-- --session=long:3/36`` asks for what
    ``tests_long`` runs, without another environment.
    """
    if any(arg.startswith("--session=long") for arg in session.posargs):
        left_out(session, backend)
        return
    which = "not long and not sources"
    if backend != ONCE:
        which += " and not once"
    where = {} if backend == ONCE else in_memory()
    args = ("-m", which, "--ignore=tests/data/sources", *TWO, *short(session))
    pytest(session, backend, *args, **where)


def left_out(session: nox.Session, backend: str, *args: str) -> None:
    """What ``normal`` leaves out."""
    which = "not sources" if backend == ONCE else "not sources and not once"
    args = ("-m", which, "--ignore=tests/data/sources", *TWO, *args)
    pytest(session, backend, *args, **in_memory())


@nox.session
@each_backend
def tests(session: nox.Session, backend: str) -> None:
    """The tests, where only this backend is installed."""
    install(session, *tested(backend))
    normal(session, backend)


@nox.session
@each_backend
def oldest_keras(session: nox.Session, backend: str) -> None:
    """The same with the oldest Keras that is supported."""
    install(session, *tested(backend), "keras==3.12.*")
    normal(session, backend)


@nox.session
@each_backend
def next_keras(session: nox.Session, backend: str) -> None:
    """The same with the latest nightly build of Keras."""
    install(session, *tested(backend))
    install_next_keras(session)
    normal(session, backend)


def install_every_library(session: nox.Session, *others: str) -> None:
    needed = {item for backend in BACKENDS for item in tested(backend)}
    install(session, *sorted(needed), *group("sources"), *others)


@nox.session(default=False)
def every_library(session: nox.Session) -> None:
    """Install all backends and sources of data, once, for the sessions below."""
    install_every_library(session)


@nox.session(default=False)
def every_library_oldest(session: nox.Session) -> None:
    """The same with the oldest Keras that is supported."""
    install_every_library(session, "keras==3.12.*")


@nox.session(default=False)
def every_library_next(session: nox.Session) -> None:
    """The same with the latest nightly build of Keras."""
    install_every_library(session)
    install_next_keras(session)


def every_source(
    session: nox.Session, backend: str, *args: str, libraries: str = "every_library"
) -> None:
    """Tests that need the libraries of all sources of data."""
    shared = Path(session.env_dir).with_name(libraries)
    arguments = (*TWO, *args, *session.posargs)
    session.run(
        *(str(shared / "bin" / "pytest"), *arguments),
        env={"KERAS_BACKEND": backend, **KEEP_COMPILED, **in_memory()},
        external=True,
        success_codes=ended_well(arguments),
    )


@nox.session(venv_backend="none", requires=["every_library"])
@each_backend
def sources(session: nox.Session, backend: str) -> None:
    """Every source of data, where the libraries of all of them are installed."""
    every_source(session, backend, "-m", "sources and not long", *short(session))


@nox.session(venv_backend="none", requires=["every_library"])
@each_backend
def sources_long(session: nox.Session, backend: str) -> None:
    """What ``sources`` leaves out, and many more kills."""
    every_source(session, backend, "-m", "sources", "--session=long")


@nox.session(venv_backend="none", requires=["every_library_oldest"])
@each_backend
def oldest_sources(session: nox.Session, backend: str) -> None:
    """Every source of data with the oldest Keras that is supported."""
    args = ("-m", "sources and not long", *short(session))
    every_source(session, backend, *args, libraries="every_library_oldest")


@nox.session(venv_backend="none", requires=["every_library_next"])
@each_backend
def next_sources(session: nox.Session, backend: str) -> None:
    """Every source of data with the latest nightly build of Keras."""
    args = ("-m", "sources and not long", *short(session))
    every_source(session, backend, *args, libraries="every_library_next")


@nox.session(default=False, venv_backend="none", requires=["every_library"])
def exact(session: nox.Session) -> None:
    """Kill users' programs on the three backends: `-- --backend torch -k loop`."""
    shared = Path(session.env_dir).with_name("every_library")
    session.run(
        *(str(shared / "bin" / "pytest"), "tests/exact", *TWO, *session.posargs),
        env={**KEEP_COMPILED, **in_memory()},
        external=True,
    )


@nox.session
@each_backend
def tests_long(session: nox.Session, backend: str) -> None:
    """What ``tests`` leaves out, and many more kills: in saves, at random schedules."""
    install(session, *tested(backend))
    left_out(session, backend, "--session=long")


@nox.session(default=False)
@each_backend
def libraries(session: nox.Session, backend: str) -> None:
    """Kill programs of KerasTuner, KerasHub, BayesFlow, keras-rs and scikeras."""
    install(session, *tested(backend), *group("libraries"))
    arguments = session.posargs or ["tests/libraries/test_libraries.py"]
    session.run("pytest", *TWO, *arguments, env={"KERAS_BACKEND": backend})


@nox.session(default=False)
@each_backend
def engines(session: nox.Session, backend: str) -> None:
    """Kill workers that torchrun, Ray and SLURM (if it is installed) start again."""
    install(session, *tested(backend), *group("engines"))
    session.run(
        "pytest",
        *(session.posargs or ["tests/engines"]),
        env={"KERAS_BACKEND": backend},
    )


@nox.session(default=False)
def trackers(session: nox.Session) -> None:
    """Kill trainings that W&B, MLflow and TensorBoard track."""
    install(session, *tested("torch"), *group("trackers"))
    arguments = session.posargs or ["tests/trackers"]
    session.run("pytest", *arguments, env={"KERAS_BACKEND": "torch"})


@nox.session(default=False)
def pages(session: nox.Session) -> None:
    """Reports in a browser: RESILIENT_BROWSER, or a chromium or chrome on the path."""
    install(session, *tested("torch"), *group("pages"))
    arguments = session.posargs or ["tests/pages", "tests/report"]
    session.run("pytest", *arguments, env={"KERAS_BACKEND": "torch"})


@nox.session(default=False)
def stores(session: nox.Session) -> None:
    """Kill runs at every request to S3's, Google's and Azure's servers; needs npm.

    These are moto, fake-gcs-server and Azurite. And the benchmark of saves to them.
    """
    install(session, *tested("torch"), *group("stores"))
    folder = session.create_tmp()
    session.run("npm", "install", "--prefix", folder, "azurite", external=True)
    binaries = str(Path(folder, "node_modules", ".bin").absolute())
    env = {"KERAS_BACKEND": "torch", "AZURITE": binaries}
    arguments = session.posargs or [
        "tests/stores",
        "tests/storage/remote/test_servers.py",
    ]
    session.run("pytest", *arguments, env=env)


def own_tests(session: nox.Session, backend: str, *args: str) -> None:
    session.run(
        *("python", "tests/keras_suite/run.py", *args, *session.posargs),
        env={"KERAS_BACKEND": backend},
    )


@nox.session
@each_backend
def keras_suite(session: nox.Session, backend: str) -> None:
    """Keras's own tests, with and without us in place of Trainer.fit."""
    install(session, *BACKENDS[backend], *group("keras-suite"))
    own_tests(session, backend)


@nox.session
@each_backend
def next_keras_suite(session: nox.Session, backend: str) -> None:
    """The same with the latest nightly build of Keras, and the tests of its source."""
    install(session, *BACKENDS[backend], *group("keras-suite"))
    install_next_keras(session)
    checkout = Path(session.create_tmp(), "keras")
    shutil.rmtree(checkout, ignore_errors=True)
    session.run("git", "clone", "--depth=1", KERAS, str(checkout), external=True)
    own_tests(session, backend, "--checkout", str(checkout))


@nox.session(default=False, venv_backend="none")
@each_backend
def fuzz(session: nox.Session, backend: str) -> None:
    """Let every reader read mutated files: ``nox -s fuzz -- --minutes 10``, each."""
    of_tests = f"tests({backend})"  # where what this needs is installed
    reuse = "-R" if "-R" in sys.argv else "-r"  # as the outer nox
    session.run("nox", reuse, "-s", of_tests, "--install-only", external=True)
    python = (
        Path(session.env_dir).absolute().with_name(f"tests-{backend}") / "bin/python"
    )
    session.chdir("tests")  # leaves the checkout off sys.path
    session.run(
        *(str(python), "-m", "fuzz", *session.posargs),
        env={"KERAS_BACKEND": backend},
        external=True,
    )


@nox.session(default=False)
def mutants(session: nox.Session) -> None:
    """Change the code in a sample of places, and see whether the tests notice."""
    install(session, *tested("torch"), "mutmut")
    shutil.rmtree("mutants", ignore_errors=True)  # results of other tests
    session.run(
        *("python", "tests/support/mutants.py", *session.posargs),
        env={"KERAS_BACKEND": "torch", **in_memory()},
    )


@nox.session
def lint(session: nox.Session) -> None:
    """Format and lint; imports go down only; no package is above its budget."""
    install(session, *group("lint"))
    session.run("ruff", "format", "--check", ".")
    session.run("ruff", "check", ".")
    session.run("lint-imports", "--no-logo")
    session.run("python", "tests/support/budgets.py")


@nox.session
def typing(session: nox.Session) -> None:
    """Type check the package, and the public API as a user's checker sees it."""
    install(session, ".", *group("typing"))
    session.run("mypy", "resilient", "tests/typing")
    session.run("pyright", "tests/typing", env={"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"})


@nox.session(default=False)
@each_backend
def messages(session: nox.Session, backend: str) -> None:
    """Print every error and warning that the tests provoke: "messages(torch)"."""
    install(session, *tested(backend))
    said = Path(session.create_tmp(), "said.jsonl").absolute()
    said.unlink(missing_ok=True)
    session.run(
        *("pytest", "-q", "-m", "not long and not sources", *TWO),
        *("--ignore=tests/data/sources", "--ignore=tests/fuzz", *session.posargs),
        env={
            "KERAS_BACKEND": backend,
            "RESILIENT_MESSAGES": str(said),
            "PYTHONPATH": str(Path("tests/messages/startup").absolute()),
            **in_memory(),
        },
    )
    session.run("python", "tests/messages/listing.py", str(said), "resilient")


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation; a warning is an error."""
    install(session, ".", *group("docs"))
    session.run("sphinx-build", "-W", "-q", "-b", "html", "docs", "docs/_build/html")


@nox.session(default=False)
def pictures(session: nox.Session) -> None:
    """Draw the pictures of the README: from tables, and from trainings it kills."""
    install(session, *BACKENDS["jax"], *group("pictures"))
    runs = session.create_tmp()
    shutil.rmtree(runs)
    env = {"KERAS_BACKEND": "jax"}
    session.run("python", "docs/pictures/loss.py", runs, env=env)
    session.run("python", "docs/pictures/bars.py")


@nox.session(default=False)
@each_backend
def gallery(session: nox.Session, backend: str) -> None:
    """Run a backend's examples, and record what they print for the gallery.

    SLURM and bash are taken from the system.
    """
    groups = ("engines", "trackers") if backend == "torch" else ()
    others = (item for name in groups for item in group(name))
    install(session, *tested(backend), *others)
    names = session.posargs or []
    env = {"KERAS_BACKEND": backend}
    session.run("python", "docs/gallery/record.py", *names, env=env)


@nox.session
def demo(session: nox.Session) -> None:
    """Kill a training and resume it. Backends: ``nox -s demo -- jax torch``."""
    backends = session.posargs or ["jax"]
    requirements = {item for name in backends for item in BACKENDS[name]}
    install(session, "-q", *sorted(requirements), *group("demo"))
    session.run("python", "examples/demo.py")
