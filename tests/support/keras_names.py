"""Counts the names of Keras's private parts that the package relies on, by file.

    python tests/support/keras_names.py [folder of the package]

Read from the source, so the count is the same with every backend and version: what is
imported from ``keras.src``, and each name in ``keras_internals/expected.py`` and in the
``expected`` of a generation. What Keras documents is not counted.
"""

import ast
import importlib.util
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "resilient"

# Where Keras has the owners of the names; a method may be inherited from elsewhere.
_FILES = {
    "ArrayDataAdapter": "trainers/data_adapters/array_data_adapter.py",
    "CallbackList": "callbacks/callback_list.py",
    "EpochIterator": "trainers/epoch_iterator.py",
    "Function": "ops/function.py",
    "GeneratorDataAdapter": "trainers/data_adapters/generator_data_adapter.py",
    "GrainDatasetAdapter": "trainers/data_adapters/grain_dataset_adapter.py",
    "LossScaleOptimizer": "optimizers/loss_scale_optimizer.py",
    "Model._flatten_layers": "layers/layer.py",
    "Model._symbolic_build": "trainers/trainer.py",
    "Model": "backend/*/trainer.py",
    "Optimizer": "optimizers/base_optimizer.py",
    "OrderedEnqueuer": "trainers/data_adapters/py_dataset_adapter.py",
    "PyDatasetAdapter": "trainers/data_adapters/py_dataset_adapter.py",
    "TFDatasetAdapter": "trainers/data_adapters/tf_dataset_adapter.py",
    "TensorBoard": "callbacks/tensorboard.py",
    "TorchDataLoaderAdapter": "trainers/data_adapters/torch_data_loader_adapter.py",
    "Trainer": "backend/*/trainer.py",
    "Variable": "backend/common/variables.py",
    "get_data_adapter": "trainers/data_adapters/__init__.py",
    "reduce_per_replica": "backend/*/trainer.py",
    "serialize_keras_object": "saving/serialization_lib.py",
}
_PUBLIC = {"", "self", "fit", "evaluate", "apply_gradients", "reset", "stop_training"}


def count(package: Path = PACKAGE) -> dict[str, set[str]]:
    """The names by file of Keras."""
    found: dict[str, set[str]] = defaultdict(set)
    sources = {p: p.read_text(encoding="utf-8") for p in package.rglob("*.py")}
    trees = {path: ast.parse(source) for path, source in sources.items()}
    modules: dict[str, str] = {}
    for module, name in (i for tree in trees.values() for i in _imports(tree)):
        if _file(f"{module}.{name}") is None:
            found[str(_file(module))].add(name)
        else:
            modules[name] = str(_file(f"{module}.{name}"))
    constants: dict[str, list[str]] = {}
    for tree in trees.values():
        constants |= _constants(tree)
    for path, tree in trees.items():
        for owner, name in _attributes(tree):
            if owner in modules:
                found[modules[owner]].add(name)
        lists = re.fullmatch(r"expected|keras_contract|keras_3_\d+", path.stem)
        for label, names in _labels(tree, constants) if lists else ():
            file = _FILES.get(label) or _FILES[label.partition(".")[0]]
            found[file].update({*names, label.partition(".")[2]})
    return {
        file: kept
        for file, names in sorted(found.items())
        if (kept := {n for n in names - _PUBLIC if not n.startswith("__")})
    }


def _file(module: str) -> str | None:
    """The file of a module, which is not imported: that would take long."""
    path = module.removeprefix("keras.src.").replace(".", "/")
    spec = importlib.util.find_spec("keras")
    assert spec is not None
    source = Path(str(spec.origin)).parent / "src"
    files = (f"{path}.py", f"{path}/__init__.py")
    return next((file for file in files if (source / file).is_file()), None)


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(
            "keras.src"
        ):
            yield from ((str(node.module), alias.name) for alias in node.names)


def _attributes(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Attributes of names, and of names in our package of private names."""
    others: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(
                targets=[ast.Name(id=name)],
                value=ast.Attribute(value=ast.Name(id="keras_internals"), attr=owner),
            ):
                others[name] = owner
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=name):
                yield others.get(owner, owner), name
            case ast.Attribute(
                value=ast.Attribute(value=ast.Name(id="keras_internals"), attr=owner),
                attr=name,
            ):
                yield owner, name


def _constants(tree: ast.Module) -> dict[str, list[str]]:
    """Strings in what a module assigns to names in capitals."""
    return {
        target.id: _strings(node.value, {})
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id.strip("_").isupper()
    }


def _labels(
    tree: ast.AST, constants: dict[str, list[str]]
) -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(tree):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            if not isinstance(value, ast.Tuple | ast.IfExp):
                continue
            if isinstance(key, ast.Name) and key.id == "EPOCH_ITERATOR":
                yield "Trainer", _strings(value, constants)
            label = getattr(key, "value", None)
            if isinstance(label, str) and label.partition(".")[0] in _FILES:
                yield label, _strings(value, constants)


def _strings(tree: ast.AST, constants: dict[str, list[str]]) -> list[str]:
    """The strings in an expression, and in the constants that it names."""
    found: list[str] = []
    if isinstance(tree, ast.Dict):
        return [s for value in tree.values for s in _strings(value, constants)]
    if isinstance(tree, ast.Compare):  # a backend's name
        return []
    if isinstance(tree, ast.Constant) and isinstance(tree.value, str):
        found.append(tree.value)
    if isinstance(tree, ast.Name):
        known = {"EPOCH_ITERATOR": "_EPOCH_ITERATORS"}.get(tree.id, tree.id)
        found += constants.get(known, [])
    for child in ast.iter_child_nodes(tree):
        found += _strings(child, constants)
    return found


def table(found: dict[str, set[str]]) -> str:
    """As the documentation has it."""
    rows = ["| in `keras/src/` | number | names |", "|---|---|---|"]
    for file, names in found.items():
        listed = ", ".join(f"`{name}`" for name in sorted(names))
        rows.append(f"| `{file}` | {len(names)} | {listed} |")
    total = sum(len(names) for names in found.values())
    rows.append(f"| {len(found)} files | {total} | |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(table(count(*map(Path, sys.argv[1:]))))
