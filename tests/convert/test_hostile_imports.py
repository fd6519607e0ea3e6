"""What a stranger can write in a file to import: it is an error that says so."""

import gzip
import io
import json
import os
import pickle
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import keras
import numpy as np
import pytest
from support.fitting import layers
from support.fitting import model as new_model

import resilient
from resilient import CheckpointMismatchError, NotSupportedError
from resilient.convert import hdf5_files
from resilient.state.weights import ready
from resilient.storage.store import Store

BACKEND = keras.backend.backend()
# Keras reads a variable in a way that numpy 2.4 says will end.
pytestmark = [
    pytest.mark.spread,
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),
]
HUGE = 1 << 40


def model(**given: Any) -> keras.Model:
    """A model with the names that it has in a process of its own."""
    keras.utils.clear_session(free_memory=False)
    return new_model(**given)


def refused(source: Path, kind: type[Exception] = NotSupportedError) -> str:
    target = source.parent / "run"
    with pytest.raises(kind) as raised:
        resilient.import_checkpoint(source, model(), checkpoint_dir=target, epoch=1)
    assert not Path("SEEN").exists()
    assert not target.exists()
    return str(raised.value)


@pytest.mark.parametrize(
    "name", ["x.keras", "x.weights.h5", "x.safetensors", "x.pt", "x.pth", "x.bin"]
)
def test_what_blocks_who_opens_it(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert "not a regular file" in refused(tmp_path / name)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("/dev/zero")
    assert "not a regular file" in refused(tmp_path / name)


def test_a_backup_whose_metadata_blocks(tmp_path: Path) -> None:
    net = model()
    net.save_weights(tmp_path / "latest.weights.h5")
    os.mkfifo(tmp_path / "training_metadata.json")
    assert "not a regular file" in refused(tmp_path)
    (tmp_path / "training_metadata.json").unlink()
    deep = "[" * 200_000
    (tmp_path / "training_metadata.json").write_text(deep)
    assert "does not say how far" in refused(tmp_path)


Change = Callable[[h5py.File, str, Path], object]


def soft_link(file: h5py.File, name: str, _: Path) -> None:
    file.move(name, "elsewhere")
    file[name] = h5py.SoftLink("/elsewhere")


def external_link(file: h5py.File, name: str, beside: Path) -> None:
    with h5py.File(beside / "other.h5", "w") as other:
        other["x"] = file[name][...]
    del file[name]
    file[name] = h5py.ExternalLink(os.fspath(beside / "other.h5"), "x")


def external_storage(file: h5py.File, name: str, beside: Path) -> None:
    array = file[name][...]
    (beside / "secret").write_bytes(array.tobytes())
    del file[name]
    external = [(os.fspath(beside / "secret"), 0, array.nbytes)]
    file.create_dataset(name, array.shape, array.dtype, external=external)


def virtual(file: h5py.File, name: str, beside: Path) -> None:
    array = file[name][...]
    with h5py.File(beside / "other.h5", "w") as other:
        other["x"] = array
    layout = h5py.VirtualLayout(array.shape, array.dtype)
    layout[...] = h5py.VirtualSource(os.fspath(beside / "other.h5"), "x", array.shape)
    del file[name]
    file.create_virtual_dataset(name, layout)


def compressed(file: h5py.File, name: str, _: Path) -> None:
    array = file[name][...]
    del file[name]
    file.create_dataset(name, data=array, compression="gzip")


def in_pieces(file: h5py.File, name: str, _: Path) -> None:
    array = file[name][...]
    del file[name]
    file.create_dataset(name, data=array, chunks=True)


def not_there(file: h5py.File, name: str, _: Path) -> None:
    del file[name]
    file.create_dataset(name, (HUGE,), "f4", chunks=(1024,))


def objects(file: h5py.File, name: str, _: Path) -> None:
    del file[name]
    file.create_dataset(name, data=np.array(["x"], dtype=h5py.string_dtype()))


def nothing(file: h5py.File, name: str, _: Path) -> None:
    del file[name]
    file[name] = h5py.Empty("f4")


def in_itself(file: h5py.File, _: str, __: Path) -> None:
    file["again"] = file["/"]


CHANGES: list[Change] = [
    soft_link,
    external_link,
    external_storage,
    virtual,
    compressed,
    in_pieces,
    not_there,
    objects,
    nothing,
    in_itself,
]


@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_are_not_in_their_file(tmp_path: Path, change: Change) -> None:
    source = tmp_path / "x.weights.h5"
    model().save_weights(source)
    with h5py.File(source, "r+") as file:
        names: list[str] = []
        file.visititems(
            lambda name, item: (
                names.append(name) if isinstance(item, h5py.Dataset) else None
            )
        )
        change(file, names[0], tmp_path)
    assert "as Keras writes it" in refused(source)


def test_a_file_in_which_libhdf5_is_caught_in_a_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No signal and no thread ends it."""
    monkeypatch.setattr(hdf5_files, "SECONDS", 3.0)
    source = tmp_path / "x.weights.h5"
    wrong = Path(__file__).with_name("wrong_addresses.weights.h5.gz")
    source.write_bytes(gzip.decompress(wrong.read_bytes()))
    assert "cannot be read within 3 s" in refused(source)


def test_a_file_that_crashes_libhdf5(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, look = tmp_path / "x.weights.h5", tmp_path / "look.py"
    source.touch()
    look.write_text("import os\nos.abort()\n")
    monkeypatch.setattr(hdf5_files, "LOOK", look)
    assert "crashes libhdf5 (signal 6)" in refused(source)


@pytest.mark.parametrize("stored", ["f8", "i8", "c16", "?"])
def test_a_dtype_that_is_only_named_is_not_cast(tmp_path: Path, stored: str) -> None:
    source = tmp_path / "x.weights.h5"
    model().save_weights(source)
    with h5py.File(source, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        name = next(n for n in names if isinstance(file[n], h5py.Dataset))
        array = file[name][...].astype(stored)
        del file[name]
        file[name] = array
        file[name].attrs["dtype"] = "float32"
    assert f"float32 as {array.dtype}" in refused(source, CheckpointMismatchError)


def test_a_look_is_as_isolated_as_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What PYTHONPATH has is not run where Python was told to leave it."""
    (tmp_path / "json.py").write_text("raise RuntimeError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    flags = SimpleNamespace(ignore_environment=1, no_user_site=1)
    isolated = SimpleNamespace(executable=sys.executable, flags=flags)
    monkeypatch.setattr(hdf5_files, "sys", isolated)
    source = tmp_path / "x.weights.h5"
    model().save_weights(source)
    assert hdf5_files.layout(source)


def test_a_path_that_is_no_text_is_told_escaped(tmp_path: Path) -> None:
    source = tmp_path / os.fsdecode(b"\xff.weights.h5")
    net = model()
    ready(net)
    net.save_weights(tmp_path / "x.weights.h5")
    (tmp_path / "x.weights.h5").rename(source)
    with pytest.warns(resilient.NotExactWarning):
        made = resilient.import_checkpoint(
            source, net, checkpoint_dir=tmp_path / "run", epoch=1
        )
    said = json.loads((made.path / "run.json").read_bytes())["source"]
    assert said == f"{tmp_path}/\\udcff.weights.h5"


def test_a_keras_file_that_unpacks_to_more(tmp_path: Path) -> None:
    """It would fill the disk before it is compared with the model."""
    source = tmp_path / "x.keras"
    with zipfile.ZipFile(source, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.weights.h5", bytes(1 << 24))
    assert "compressed" in refused(source)
    with zipfile.ZipFile(source, "w") as archive:
        archive.writestr("model.weights.h5", b"")
        archive.writestr("../model.weights.h5", b"")
    assert "weights and nothing else" in refused(source)


class Touches:
    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, ("SEEN",)


def test_a_state_dict_that_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    content = pickle.dumps({"a": Touches()}, 2)
    (tmp_path / "x.pt").write_bytes(content)
    refused(tmp_path / "x.pt")
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", content)
    (tmp_path / "x.pth").write_bytes(file.getvalue())
    refused(tmp_path / "x.pth")


@pytest.mark.everywhere
@pytest.mark.skipif(BACKEND != "torch", reason="torch writes the file")
def test_many_tensors_that_share_bytes_are_not_copied(tmp_path: Path) -> None:
    import torch

    shared = torch.zeros(100, 100)
    torch.save({str(n): shared.T for n in range(50)}, tmp_path / "x.pt")
    assert "larger than the file" in refused(tmp_path / "x.pt")
    torch.save({"a": shared.T}, tmp_path / "y.pt")
    assert "unexpected: a" in refused(tmp_path / "y.pt", CheckpointMismatchError)


@pytest.mark.parametrize(
    "header",
    [
        {"a": {"dtype": "F32", "shape": [HUGE], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F4", "shape": [8], "data_offsets": [0, 4]}},
        {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 400]}},
        {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}},
        [],
    ],
)
def test_safetensors_that_are_not_there(tmp_path: Path, header: object) -> None:
    raw = json.dumps(header).encode()
    content = len(raw).to_bytes(8, "little") + raw + bytes(4)
    (tmp_path / "x.safetensors").write_bytes(content)
    refused(tmp_path / "x.safetensors")


of_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="of TensorFlow")
of_orbax = pytest.mark.skipif(BACKEND != "jax", reason="Orbax comes with JAX")


@pytest.mark.everywhere
@of_tensorflow
def test_a_directory_that_names_another(tmp_path: Path) -> None:
    import tensorflow as tf

    (tmp_path / "other").mkdir()
    prefix = tf.train.Checkpoint(net=model()).write(str(tmp_path / "other/x"))
    for named in (prefix, "../other/x"):
        source = tmp_path / "here"
        source.mkdir(exist_ok=True)
        (source / "checkpoint").write_text(f'model_checkpoint_path: "{named}"\n')
        assert "names another directory" in refused(source)


@pytest.mark.everywhere
@of_tensorflow
@pytest.mark.parametrize(
    "content",
    [
        'model_checkpoint_path: "/*/*/*/*/*/*/*"',
        'model_checkpoint_path: ""',
        "all_model_checkpoint_paths: 3",
        "",
        "x" * ((1 << 20) + 1),
        "\xff",
    ],
    ids=len,
)
def test_a_directory_whose_file_checkpoint_is_odd(tmp_path: Path, content: str) -> None:
    """TensorFlow looks for whatever pattern it names, on the whole machine."""
    source = tmp_path / "here"
    source.mkdir()
    (source / "checkpoint").write_bytes(content.encode("latin-1"))
    refused(source)


def graph(*changes: Callable[[Any], object], nodes: int = 0) -> bytes:
    """A model's graph of objects, with a chain of nodes behind it, then changed."""
    from tensorflow.core.protobuf.trackable_object_graph_pb2 import (
        TrackableObjectGraph,
    )

    found = TrackableObjectGraph()
    found.nodes.add().children.add(node_id=1, local_name="net")
    for number in range(2, nodes + 2):
        found.nodes.add().children.add(node_id=number, local_name="a")
    found.nodes.add().attributes.add(name="VARIABLE_VALUE", checkpoint_key="x")
    for change in changes:
        change(found.nodes)
    return found.SerializeToString()


def slots(nodes: Any) -> None:
    """Each is one of the one before: TensorFlow's names for them double."""
    for number in range(2, len(nodes)):
        nodes[number - 1].slot_variables.add(
            original_variable_node_id=number - 1,
            slot_variable_node_id=number,
            slot_name="m",
        )


@pytest.mark.everywhere
@of_tensorflow
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (lambda: b"", "no objects"),
        (lambda: graph(nodes=5000), "too long"),
        (lambda: graph(slots, nodes=60), "too long"),
        (lambda: graph(lambda n: n[1].children.add(node_id=9)), "does not have"),
        (lambda: graph(lambda n: n[1].children.add(node_id=-1)), "does not have"),
        (
            lambda: graph(lambda n: n[1].slot_variables.add(slot_variable_node_id=9)),
            "does not have",
        ),
        (
            lambda: graph(lambda n: (n.add(), n[2].slot_variables.add())),
            "nothing leads to",
        ),
        (
            lambda: graph(lambda n: n[0].children.add(local_name="\x1b[2J")),
            "control characters",
        ),
        (
            lambda: graph(lambda n: n[1].attributes.add(name="\x1b[2J")),
            "control characters",
        ),
        (
            lambda: graph(lambda n: setattr(n[1].registered_saver, "name", "x")),
            "a saver of its own",
        ),
    ],
)
def test_a_graph_of_objects_that_tensorflow_is_not_safe_with(
    tmp_path: Path, content: Callable[[], bytes], why: str
) -> None:
    import tensorflow as tf

    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "x"),
        tensor_names=["_CHECKPOINTABLE_OBJECT_GRAPH", "x"],
        shape_and_slices=["", ""],
        tensors=[tf.constant(content()), tf.zeros(1)],
    )
    assert why in refused(tmp_path / "x")


@pytest.mark.everywhere
@of_tensorflow
@pytest.mark.parametrize("name", ["a\u3000b", "n\u200cm", "a\tb", "x\xa0"])
def test_layers_may_have_any_name(tmp_path: Path, name: str) -> None:
    import tensorflow as tf

    def named() -> keras.Model:
        layer = keras.layers.Dense(1, name=name)
        net = keras.Sequential([keras.Input((2,)), layer])
        net.compile("adam", "mse")
        ready(net)
        return net

    tf.train.Checkpoint(net=named()).write(str(tmp_path / "x"))
    target = tmp_path / "run"
    with pytest.warns(resilient.NotExactWarning, match="start from scratch"):
        resilient.import_checkpoint(
            tmp_path / "x", named(), checkpoint_dir=target, epoch=1
        )
    assert len(Store(target).checkpoints()) == 1


@pytest.mark.everywhere
@of_tensorflow
def test_a_tensorflow_checkpoint_whose_data_is_elsewhere(tmp_path: Path) -> None:
    import tensorflow as tf

    tf.train.Checkpoint(net=model()).write(str(tmp_path / "x"))
    data = tmp_path / "x.data-00000-of-00001"
    data.rename(tmp_path / "secret")
    data.symlink_to(tmp_path / "secret")
    assert "missing" in refused(tmp_path / "x")
    data.unlink()
    os.mkfifo(data)
    assert "missing" in refused(tmp_path / "x")


@pytest.mark.everywhere
@of_tensorflow
def test_a_tensorflow_checkpoint_of_another_shape_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow as tf

    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "x"),
        tensor_names=["a"],
        shape_and_slices=[""],
        tensors=[tf.zeros(100)],
    )

    def read(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(
        tf.train.load_checkpoint(str(tmp_path / "x")).__class__, "get_tensor", read
    )
    refused(tmp_path / "x", CheckpointMismatchError)


def tree(directory: Path, **given: bool) -> Path:
    import orbax.checkpoint

    handler = orbax.checkpoint.PyTreeCheckpointHandler(**given)
    with orbax.checkpoint.Checkpointer(handler) as checkpointer:
        net = model()
        content = {v.path: np.asarray(v.value) for v in net.weights}
        checkpointer.save(directory / "tree", content)
    return directory / "tree"


@pytest.mark.everywhere
@of_orbax
def test_an_orbax_checkpoint_with_chunks_that_no_memory_holds(tmp_path: Path) -> None:
    """An array of a few bytes, compressed, that says it is read by the terabyte."""
    source = tree(tmp_path, use_ocdbt=False)
    for metadata in source.rglob(".zarray"):
        zarray = json.loads(metadata.read_text())
        zarray["chunks"][:1] = [1 << 38]
        metadata.write_text(json.dumps(zarray))
    assert "larger than the whole array" in refused(source)


@pytest.mark.everywhere
@of_orbax
def test_an_orbax_checkpoint_that_leads_elsewhere(tmp_path: Path) -> None:
    source = tree(tmp_path)
    (source / "d/link").symlink_to("/dev/zero")
    assert "regular files and directories" in refused(source)


@pytest.mark.everywhere
@of_orbax
def test_an_orbax_checkpoint_whose_database_is_far_larger_than_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tree(tmp_path)
    files = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    monkeypatch.setattr("resilient.backends.ocdbt_nodes._MORE", -files + 1000)
    assert "far more content" in refused(source)


@pytest.mark.everywhere
@of_orbax
def test_an_orbax_checkpoint_of_another_shape_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import orbax.checkpoint

    def restore(*_: Any, **__: Any) -> None:
        raise AssertionError

    source = tree(tmp_path)
    monkeypatch.setattr(f"{__name__}.model", other_model)
    monkeypatch.setattr(orbax.checkpoint.PyTreeCheckpointer, "restore", restore)
    refused(source, CheckpointMismatchError)


def other_model() -> keras.Model:
    return new_model(of=lambda: layers(width=4))
