"""Other bytes have another digest, whatever holds them."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest

from resilient import NotSupportedError
from resilient.backends.base import HeldTensors
from resilient.progress import Progress
from resilient.saving.digest import differing, digest, of_batch
from resilient.saving.run_json import VariablesRun
from resilient.saving.snapshot import NOWHERE, Snapshot
from resilient.serialization.json_values import encode

START = Progress(0, 0, 0)
LARGE = np.zeros((64, 64), "float32")  # NumPy shortens its text


def changed(array):
    array = array.copy()
    array[array.shape[0] // 2, 32] = 1
    return array


class Held(HeldTensors):
    def _view(self, held):
        return held

    def _write(self, held, directory, part):
        raise NotImplementedError


def whole(value):
    run = VariablesRun(variables=[{"name": "x", "path": "x"}])
    return digest(Snapshot(run, NOWHERE, Held({"x": value}), START)).whole


def cut(*pieces):
    """An array cut over devices."""
    owned = {(row, 0): piece for row, piece in enumerate(pieces)}
    return SimpleNamespace(shape=(64, 64), dtype=LARGE.dtype, owned=owned)


def test_each_byte_of_an_array_counts():
    """Also of one whose name, x, is a word in the position of the data."""
    assert whole(LARGE) == whole(LARGE.copy()) != whole(changed(LARGE))
    assert whole(LARGE) != whole(LARGE.reshape(-1))


def test_each_byte_of_an_array_that_is_cut_over_devices_counts():
    half = LARGE[:32]
    found = [
        *(cut(half, half), cut(changed(half), half), cut(half, changed(half))),
        cut(half),
    ]
    assert whole(cut(half.copy(), half)) == whole(found[0])
    assert len({whole(each) for each in found}) == len(found)


def test_how_the_position_of_the_data_is_told_does_not_count():
    """What was drawn ahead is a part of it, and depends on the time."""

    def told(ahead):
        arrays = {}
        position = encode({"ahead": ahead}, arrays, "data")
        held = Held(arrays)
        return digest(Snapshot(VariablesRun(), position, held, START))

    one, other = told(LARGE), told(changed(LARGE))
    assert one.whole == other.whole
    assert differing(one.names, one.leaves, other.leaves) == ["data"]


def test_a_batch_of_objects_has_no_digest():
    with pytest.raises(NotSupportedError, match="not an array"):
        of_batch((LARGE, np.array([object()])))


def test_each_byte_of_a_batch_counts():
    rows = np.empty(2, object)
    rows[:] = [LARGE, LARGE]
    others = rows.copy()
    others[1] = changed(LARGE)
    found = [of_batch((LARGE, {"y": each})) for each in (rows, others)]
    assert found[0] == of_batch((LARGE.copy(), {"y": rows.copy()})) != found[1]
    assert of_batch(np.array(["a", None])) != of_batch(np.array([None, "a"]))


@pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="only there are such batches"
)
def test_batches_of_tensorflow():
    import tensorflow as tf
    from tensorflow.python.distribute.values import PerReplica

    def spread(*parts):
        return (PerReplica(tuple(map(tf.constant, parts))),)

    assert of_batch(spread(LARGE, LARGE)) == of_batch(spread(LARGE, LARGE.copy()))
    assert of_batch(spread(LARGE, LARGE)) != of_batch(spread(LARGE, changed(LARGE)))
    ragged = [[1, 2], [3]], [[1], [2, 3]]
    assert len({of_batch(tf.ragged.constant(each)) for each in ragged}) == 2
    sparse = LARGE, changed(LARGE), np.roll(changed(LARGE), 1, 0)
    assert len({of_batch(tf.sparse.from_dense(each)) for each in sparse}) == 3
