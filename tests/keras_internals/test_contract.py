"""The contract with Keras: each private name that is used, and what if it is gone."""

import ast
import functools
import runpy
import sys
import types
from pathlib import Path

import keras
import numpy as np
import pytest
from support import ROOT, keras_names

import resilient
from resilient import NotSupportedError, keras_internals
from resilient.keras_internals import contract, expected, names, unknown

ON_TENSORFLOW = keras_internals.BACKEND == "tensorflow"
# Looked at where they are used. Workers under a strategy are TensorFlow's alone.
PARTS = [expected.OF_SEVERAL_PROCESSES, expected.OF_TENSORBOARD]
PARTS += [expected.OF_SEVERAL_WORKERS] if ON_TENSORFLOW else []


def pairs(labels):
    return [(label, name) for label, names in labels.items() for name in names]


CONTRACT = pairs(contract.EXPECTED)
OF_PARTS = [pair for part in PARTS for pair in pairs(part)]


def test_the_installed_keras_is_known():
    assert contract.changes() == []
    contract.require_known_keras()
    for part in PARTS:
        contract.require_known(part)


def refusal():
    """The message with which this Keras is refused."""
    with pytest.raises(NotSupportedError, match="does not know") as found:
        contract.require_known_keras()
    what, _, rest = str(found.value).partition("\nReceived: ")
    assert rest.startswith(f"Keras {keras.__version__}: ")
    assert what.endswith("It knows Keras 3.12 to 3.16.")
    assert f"\nInstall a version that works: {unknown.INSTALL}. " in rest
    assert unknown.INSTALL.endswith('pip install "keras>=3.12,<3.17"')
    assert rest.endswith("report this message as an issue of keras-resilient.")
    return rest


def without(name, code):
    """A function's code, nested code included, with another name in place of one."""

    def other(names):
        return tuple(f"{n}_renamed" if n == name else n for n in names)

    return code.replace(
        co_names=other(code.co_names),
        co_varnames=other(code.co_varnames),
        co_cellvars=other(code.co_cellvars),
        co_freevars=other(code.co_freevars),
        co_consts=tuple(
            without(name, const) if isinstance(const, types.CodeType) else const
            for const in other(code.co_consts)
        ),
    )


def renamed(name, thing):
    """A function, or a class of functions, as if Keras had renamed what it uses."""
    if isinstance(thing, type):
        members = {n: getattr(thing, n) for n in dir(thing)}
        functions = {
            n: renamed(name, f)
            for n, f in members.items()
            if isinstance(f, types.FunctionType)
        }
        return type(thing.__name__, (), functions)
    while hasattr(thing, "__wrapped__"):
        thing = thing.__wrapped__
    return types.FunctionType(
        without(name, thing.__code__),
        thing.__globals__,
        thing.__name__,
        thing.__defaults__,
        thing.__closure__,
    )


@pytest.mark.parametrize(("label", "name"), CONTRACT)
def test_a_renamed_name_is_noticed_and_named(monkeypatch, label, name):
    owner, _, attribute = label.partition(".")
    owners = contract.OWNERS
    if attribute:
        other = renamed(name, getattr(owners[owner], attribute))
        monkeypatch.setattr(owners[owner], attribute, other)
    else:
        monkeypatch.setitem(owners, owner, renamed(name, owners[owner]))
    assert f"{label} no longer mentions {name}" in contract.changes()
    assert f"{label} no longer mentions {name}" in refusal()


@pytest.mark.parametrize(("label", "name"), OF_PARTS)
def test_a_renamed_name_that_not_every_training_needs_is_noticed(
    monkeypatch, label, name
):
    owner, _, attribute = label.partition(".")
    whole = contract.OWNERS[owner]
    thing = getattr(whole, attribute) if attribute else whole
    other = renamed(name, thing)
    if attribute:
        other = type(owner, (), {attribute: other})
    monkeypatch.setitem(contract.OWNERS, owner, other)
    with pytest.raises(NotSupportedError, match="no longer mentions"):
        contract.require_known({label: (name,)})


def test_a_name_that_moved_to_a_private_helper_is_no_change(monkeypatch):
    adapter = contract.OWNERS["PyDatasetAdapter"]
    plain = adapter.on_epoch_end
    monkeypatch.setattr(adapter, "_stop", plain, raising=False)

    def on_epoch_end(self):
        self._stop()

    on_epoch_end.__module__ = plain.__module__
    monkeypatch.setattr(adapter, "on_epoch_end", on_epoch_end)
    assert contract.changes() == []
    monkeypatch.setattr(adapter, "_stop", renamed("enqueuer", plain))
    found = "PyDatasetAdapter.on_epoch_end no longer mentions enqueuer"
    assert contract.changes() == [found]


def test_a_local_variable_of_fit_that_moved_to_a_helper_is_noticed(monkeypatch):
    trainer = contract.OWNERS["Trainer"]
    plain = trainer.fit
    monkeypatch.setattr(trainer, "_fit", plain, raising=False)

    def fit(self, **kwargs):
        return self._fit(**kwargs)

    monkeypatch.setattr(trainer, "fit", fit)
    found = contract.changes()
    assert "Trainer.fit no longer mentions verbose" in found
    assert "Trainer.fit no longer mentions on_epoch_end" not in found


@pytest.mark.parametrize(
    "label", [label for label in contract.EXPECTED if "." in label]
)
def test_a_method_that_is_gone_is_noticed_and_named(monkeypatch, label):
    owner, _, attribute = label.partition(".")
    monkeypatch.setitem(contract.OWNERS, owner, type(owner, (), {}))
    gone = f"{owner} has no {attribute}"
    if attribute == "__init__":  # every class has one
        gone = f"{label} no longer mentions"
    assert gone in refusal()


@pytest.mark.parametrize("name", [keras_internals.EPOCH_ITERATOR, "callbacks_module"])
def test_a_name_that_the_trainer_module_lacks_is_noticed(monkeypatch, name):
    monkeypatch.delattr(keras_internals.trainer_module, name)
    assert f"trainer has no {name}" in refusal()


def test_an_iterator_that_is_no_generator_is_noticed(monkeypatch):
    iterator = keras_internals.EpochIterator
    generator = iterator._enumerate_iterator

    def eager(self):  # mentions all that it has to
        return iter(list(generator(self)))

    eager.__wrapped__ = generator
    monkeypatch.setattr(iterator, "_enumerate_iterator", eager)
    assert "_enumerate_iterator is no generator" in refusal()


class Callable:
    def __call__(self, *args, **kwargs):
        """Not Keras's."""


@pytest.mark.parametrize(
    ("label", "other", "name"),
    [
        ("Trainer.fit", lambda self: None, "<lambda>"),
        ("Trainer.fit", functools.partial(lambda self: None), "<lambda>"),
        ("Trainer.fit", Callable(), "Callable"),
        ("CallbackList._flush_futures", lambda self: None, "<lambda>"),
    ],
)
def test_what_stands_in_place_of_a_part_of_keras_is_named(
    monkeypatch, label, other, name
):
    owner, _, attribute = label.partition(".")
    monkeypatch.setattr(contract.OWNERS[owner], attribute, other)
    with pytest.raises(NotSupportedError, match="Something replaced a part") as found:
        contract.require_known_keras()
    assert f"Received: {label} is {name} of {__name__}\n" in str(found.value)


def test_a_wrapper_of_the_trainers_fit_is_no_hindrance_if_it_says_what_it_wraps(
    monkeypatch,
):
    trainer = contract.OWNERS["Trainer"]
    plain = trainer.fit

    @functools.wraps(plain)
    def fit(*args, **kwargs):
        return plain(*args, **kwargs)

    monkeypatch.setattr(trainer, "fit", fit)
    contract.require_known_keras()


def test_a_plain_wrapper_of_model_fit_is_no_hindrance(monkeypatch, tmp_path):
    keras_fit, called = keras.Model.fit, []

    def fit(self, *args, **kwargs):
        called.append(self)
        return keras_fit(self, *args, **kwargs)

    monkeypatch.setattr(keras.Model, "fit", fit)
    contract.require_known_keras()
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(loss="mse")
    ones = np.ones((4, 1))
    run = tmp_path / "run"
    history = resilient.fit(model, ones, ones, checkpoint_dir=run, verbose=0)
    assert called == [model]
    assert len(history.history["loss"]) == 1
    assert list(run.glob("step-*"))


def test_another_place_of_the_global_seed_generator_is_noticed(monkeypatch):
    seeds = keras_internals.seed_generator
    monkeypatch.setattr(seeds, "GLOBAL_SEED_GENERATOR", "elsewhere", raising=False)
    assert "global seed generator is kept under another name" in refusal()


@pytest.mark.parametrize(
    "module",
    [
        "keras.src.trainers.data_adapters.array_slicing",
        "keras.src.trainers.data_adapters.py_dataset_adapter",
        keras_internals.trainer_module.__name__,
    ],
)
def test_a_module_that_is_gone_is_named(monkeypatch, module):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(NotSupportedError, match=module) as found:
        runpy.run_path(names.__file__)
    assert f"Keras {keras.__version__}: " in str(found.value)


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("3.16.0", (3, 16)),
        ("3.16.0.dev2026102704", (3, 16)),
        ("3.16.0rc1", (3, 16)),
        ("3.17.0", (3, 17)),
        ("4.0", (4, 0)),
        ("4.0rc1", (4, 0)),
    ],
)
def test_any_version_of_keras_can_be_read(monkeypatch, version, release):
    monkeypatch.setattr(keras, "__version__", version)
    read = runpy.run_path(unknown.__file__)
    assert read["RELEASE"] == release
    # Files of keras and of keras-nightly in one folder would be mixed.
    assert ("uninstall keras-nightly" in read["INSTALL"]) == (".dev" in version)


# Every private name is in the contract --------------------------------------------

# Of Python, NumPy, TensorFlow and torch, and not of Keras.
OTHERS = {
    *("_SimpleCData", "_actions", "_exit", "_pool", "_type_"),
    *("_asdict", "_getframe", "_fields", "_make", "_replace", "_value_"),
    *("_initialized", "_list_all_concrete_functions", "_rng", "_seed", "_seed2"),
    *("_VariantDataset", "_as_serialized_graph", "_inputs", "_iterator_resource"),
    *("_func", "_generator", "_py_funcs"),
    *("_cloned_datasets", "_in_multi_worker_mode"),
    *("_handle_data", "_reshuffle_each_iteration", "_tensors"),
    # torch's and torchdata's:
    *("_dataset_fetcher", "_finished", "_sampler_iter"),
    *("_index_sampler", "_next_index", "_num_yielded"),
    *("_auto_collation", "_dataset_kind", "_version"),
    *("_buffers", "_modules", "_parameters"),
}
# Of the PyDataset adapter since Keras 3.16; asked for in keras_3_16 alone.
OF_ONE_GENERATION = {"_data_shard_id", "_num_data_shards", "_epoch"}
OF_ONE_BACKEND = {"_jax_state", "_jax_state_synced"}


def private(name):
    return name.startswith("_") and not name.startswith("__")


def names_in(tree):
    """Private attributes that the code uses, and names that it defines itself."""
    used, own = set(), set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                own.add(name)
            case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                own.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                own.add(name)
            case ast.Attribute(attr=name):
                used.add(name)
            case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[_, key, *_]):
                used.add(getattr(key, "value", ""))
    return {name for name in used if isinstance(name, str) and private(name)}, own


def test_every_private_name_that_is_used_is_in_the_contract():
    used, own = set(), set()
    for path in Path(resilient.__file__).parent.rglob("*.py"):
        private_names, defined = names_in(ast.parse(path.read_text(encoding="utf-8")))
        used |= private_names
        own |= defined
    everything = [contract.EXPECTED, *PARTS, expected.OF_SEVERAL_WORKERS]
    known = {name for _, name in CONTRACT + OF_PARTS} | {
        part for labels in everything for label in labels for part in label.split(".")
    }
    known |= OF_ONE_GENERATION | OF_ONE_BACKEND
    assert used & known
    assert used - own - known - OTHERS == set()


def test_the_documentation_counts_the_names_of_the_contract():
    """The table is made by tests/support/keras_names.py."""
    docs = ROOT / "docs" / "keras-internals.md"
    table = keras_names.table(keras_names.count())
    assert table in docs.read_text(encoding="utf-8")


def test_only_one_package_imports_keras_src():
    found = [
        path.parent.name
        for path in Path(resilient.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.ImportFrom) and "keras.src" in (node.module or ""))
        or (isinstance(node, ast.Import) and "keras.src" in ast.unparse(node))
    ]
    assert set(found) == {"keras_internals"}


def test_only_one_module_imports_what_goes_with_keras_3_15():
    """The folder can be deleted, and that import."""
    package = Path(resilient.__file__).parent
    found = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if path.parent.name != "torch_dp" and "torch_dp." in path.read_text("utf-8")
    ]
    assert found == ["distributed/strategies/torch.py"]
