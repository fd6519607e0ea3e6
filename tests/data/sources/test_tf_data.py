"""tf.data pipelines: what cannot be exact is refused or said, and what is, is."""

import keras
import numpy as np
import pytest

import resilient
from resilient import DataNotResumableError, NotExactWarning

# Torch has to be imported before TensorFlow.
if keras.backend.backend() == "torch":
    import torch  # noqa: F401

tf = pytest.importorskip("tensorflow")

from support.pipelines import MARKS, fit, no_global_seed, rows  # noqa: E402, F401

from resilient.backends import get_backend  # noqa: E402
from resilient.data import DataOptions  # noqa: E402
from resilient.data.source import SourceContext  # noqa: E402
from resilient.data.tf_data import facts  # noqa: E402
from resilient.data.tf_data.graph import PipelineGraph  # noqa: E402
from resilient.data.tf_data.iterator_state import SeedCount  # noqa: E402
from resilient.data.tf_data.pipeline import Pipeline  # noqa: E402
from resilient.data.tf_data.variables import PipelineVariables  # noqa: E402

# Of pipelines, whoever trains on them: `nox -s exact` kills each backend's training.
pytestmark = [*MARKS, pytest.mark.spread]

TENSORFLOW = keras.backend.backend() == "tensorflow"


def none_ahead(dataset):
    """Without the prefetch that TensorFlow adds by itself.

    On JAX and PyTorch, Keras looks at a batch before training, and how many more are
    drawn then is chance.
    """
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False
    return dataset.with_options(options)


def settings(**given):
    return SourceContext(backend=get_backend(keras.backend.backend()), **given)


def drawn(dataset):
    return [np.asarray(batch).tolist() for batch in dataset]


@pytest.mark.everywhere
def test_seed_of_an_unseeded_shuffle_comes_out_of_the_checkpoint(tmp_path):
    """A run that is rolled back, in mid-epoch and between two, ends as it did."""

    def unseeded():
        return rows().shuffle(40).batch(8)

    first = fit(unseeded(), tmp_path)
    assert first != fit(unseeded(), None)
    for step in (12, 10, 3):
        assert fit(unseeded(), tmp_path, resume=step) == first


def test_seeded_pipeline_is_left_as_it_is():
    """It is iterated itself, not a copy of it: nothing can be slower."""
    dataset = rows().shuffle(40, seed=1).batch(8)
    assert Pipeline(dataset, settings()).dataset is dataset


@pytest.mark.everywhere
def test_second_fit_on_one_dataset_goes_on_with_its_order(tmp_path):
    """As in Keras; also where the first run was over when the script began."""

    def twice(first, second):
        dataset = rows().shuffle(40, seed=1).batch(8)
        return [fit(dataset, first), fit(dataset, second)]

    expected = twice(None, None)
    assert expected[0] != expected[1]
    assert twice(tmp_path / "a", tmp_path / "b")[0] == expected[0]
    assert twice(tmp_path / "c", tmp_path / "d") == expected
    assert twice(tmp_path / "c", tmp_path / "e")[1] == expected[1]


def test_looking_at_a_pipeline_draws_nothing_from_it():
    dataset = rows().map(lambda x, y: x).shuffle(40, seed=1).shuffle(9, seed=2)
    expected = drawn(dataset), drawn(dataset)
    again = rows().map(lambda x, y: x).shuffle(40, seed=1).shuffle(9, seed=2)
    pipeline = Pipeline(again, settings())
    first = drawn(again)
    pipeline.position(live=False)
    assert (first, drawn(again)) == expected


def test_rewritten_pipeline_gives_the_same_order():
    """Shuffles inside functions, whose generators are hidden, too."""

    def nested():
        outer = tf.data.Dataset.range(3).shuffle(3, seed=4)
        return outer.interleave(
            lambda i: tf.data.Dataset.range(10).shuffle(5, seed=3).map(lambda x: x + i)
        )

    plain = nested()
    pipeline = Pipeline(nested(), settings())
    assert pipeline.dataset is not plain
    for _ in range(3):
        assert drawn(pipeline.dataset) == drawn(plain)
    assert not pipeline.replayed


def test_counts_of_a_shuffle_are_read_and_set():
    shuffled = tf.data.Dataset.range(20).shuffle(20, seed=1)
    orders = [drawn(shuffled) for _ in range(4)]
    again = tf.data.Dataset.range(20).shuffle(20, seed=1)
    count = SeedCount(again)
    start = count.get()
    assert [drawn(again) for _ in range(2)] == orders[:2]
    after_two = count.get()
    drawn(again)
    count.set(after_two)
    assert drawn(again) == orders[2]
    count.set(start)
    assert drawn(again) == orders[0]


def test_data_replay_keeps_no_state(tmp_path):
    """Nothing but numbers is in the position, and the run is as exact."""

    def shuffled():
        return rows().shuffle(40).batch(8)

    pipeline = Pipeline(shuffled(), settings(options=DataOptions(replay=True)))
    pipeline.begin()
    assert "state" not in pipeline.position(live=True)
    plain = Pipeline(shuffled(), settings())
    plain.begin()
    assert "state" in plain.position(live=True)
    first = fit(shuffled(), tmp_path, replay_data=True)
    for step in (10, 8):
        assert fit(shuffled(), tmp_path, resume=step, replay_data=True) == first


def test_how_to_get_back_may_change_between_attempts(tmp_path):
    """From a saved state into a run that replays, and the other way round."""

    def shuffled():
        return rows().shuffle(40, seed=1).batch(8)

    expected = fit(shuffled(), None)
    fit(shuffled(), tmp_path, stop_at=3)
    fit(shuffled(), tmp_path, stop_at=8, replay_data=True)
    fit(shuffled(), tmp_path, stop_at=9)
    assert fit(shuffled(), tmp_path, replay_data=True) == expected


def scaled(factor):
    """Rows that Python scales, which no graph shows."""

    def tensors(x, y):
        found = tf.numpy_function(lambda a: a * np.float32(factor), [x], tf.float32)
        return tf.ensure_shape(found, [None, 4]), y

    return rows().batch(8).map(tensors)


@pytest.mark.parametrize("replay", [True, False])
def test_changed_data_is_refused_after_a_replay(tmp_path, replay):
    """The last batch is drawn again, and is another one: unless that is accepted."""
    fit(scaled(1), tmp_path, stop_at=8, replay_data=True)
    with pytest.raises(DataNotResumableError, match="has different content now"):
        fit(scaled(2), tmp_path, replay_data=replay)
    with pytest.warns(NotExactWarning, match="has different content now"):
        losses = fit(scaled(2), tmp_path, on_data_change="warn")
    assert len(losses) == 15


def test_unseeded_random_operations_are_named_and_refused(tmp_path):
    """Their state is in no iterator, and no seed is known."""

    def random():
        return rows().batch(8).map(lambda x, y: (x + tf.random.normal([4]), y))

    with pytest.warns(NotExactWarning, match="RandomStandardNormal") as warned:
        fit(random(), tmp_path, stop_at=8)
    assert len([w for w in warned if w.category is NotExactWarning]) == 1
    with pytest.raises(DataNotResumableError, match="has different content now"):
        fit(random(), tmp_path)


def test_unseeded_shuffle_inside_a_function_is_named(tmp_path):
    dataset = tf.data.Dataset.range(2).flat_map(lambda i: rows().shuffle(9)).batch(8)
    with pytest.warns(NotExactWarning, match="ShuffleDatasetV3 without a seed"):
        fit(dataset, tmp_path, stop_at=2)


def test_large_data_in_memory_is_not_copied(tmp_path, monkeypatch):
    """Seeded shuffles are exact all the same; others are named."""
    monkeypatch.setattr(facts, "LARGE_GRAPH", 0)

    def seeded():
        return rows().shuffle(40, seed=1).shuffle(3, seed=2).batch(8)

    expected = fit(seeded(), None)
    assert fit(seeded(), tmp_path) == expected
    for step in (12, 10, 3):
        assert fit(seeded(), tmp_path, resume=step) == expected
    with pytest.warns(NotExactWarning, match="shuffle 1 of 1"):
        fit(rows().shuffle(40).batch(8), tmp_path / "other")


def test_another_pipeline_is_another_run(tmp_path):
    fit(rows().shuffle(40, seed=1).batch(8), tmp_path, stop_at=8)
    with pytest.raises(resilient.CheckpointMismatchError):
        fit(rows().batch(8), tmp_path)


def test_state_of_another_pipeline_is_refused():
    pipeline = Pipeline(rows().shuffle(40).batch(8), settings())
    next(pipeline.begin())
    position = pipeline.position(live=True)
    other = Pipeline(rows().shuffle(40).map(lambda x, y: x).batch(8), settings())
    with pytest.raises(
        DataNotResumableError, match="return to its position in the checkpoint"
    ):
        other.seek(position, 1)


@pytest.mark.skipif(not TENSORFLOW, reason="tf.distribute is TensorFlow's")
def test_distributed_dataset_is_refused(tmp_path):
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    distributed = strategy.experimental_distribute_dataset(rows().batch(8))
    with pytest.raises(DataNotResumableError, match="DistributedDataset"):
        fit(distributed, tmp_path)


@pytest.mark.skipif(not TENSORFLOW, reason="tf.distribute is TensorFlow's")
def test_changed_data_is_refused_under_a_strategy(tmp_path):
    """Iterators of what is distributed are replayed, and that is always checked."""
    with tf.distribute.MirroredStrategy(["CPU:0"]).scope():
        fit(scaled(1), tmp_path, stop_at=8)
        with pytest.raises(DataNotResumableError, match=": batch 2 of the iterator"):
            fit(scaled(2), tmp_path)


def test_switching_to_replay_and_back_in_one_epoch(tmp_path):
    """An iterator goes on in the way in which it was resumed."""

    def seeded():
        return rows().shuffle(40, seed=1).shuffle(3, seed=2).batch(8)

    expected = fit(seeded(), None)
    for stop_at, replay in ((7, False), (8, True), (9, False), (13, True)):
        fit(seeded(), tmp_path, stop_at=stop_at, replay_data=replay)
    assert fit(seeded(), tmp_path) == expected


def test_sampled_datasets_are_drawn_again(tmp_path):
    """To save an iterator that was restored near its end would never return."""

    def sampled():
        both = [rows().shuffle(40, seed=1), rows(-1.0).shuffle(40, seed=2)]
        return tf.data.Dataset.sample_from_datasets(both, [0.3, 0.7], seed=3).batch(8)

    inside = tf.data.Dataset.range(2).flat_map(lambda i: sampled())
    assert Pipeline(sampled(), settings()).replayed
    assert Pipeline(inside, settings()).replayed
    expected = fit(sampled(), None)
    assert len(expected) == 30
    fit(sampled(), tmp_path, stop_at=10)
    assert fit(sampled(), tmp_path) == expected


def test_cache_is_beside_the_state_of_an_iterator_that_has_left_it(tmp_path):
    def cached():
        return rows().shuffle(40).cache().batch(8).prefetch(10)

    first = fit(cached(), tmp_path)
    for step in (12, 7, 3):
        assert fit(cached(), tmp_path, resume=step) == first


def test_variables_that_a_pipeline_assigns_are_kept(tmp_path):
    """Those of nested functions too; what is only read is not the pipeline's."""

    def counting(count, scale):
        added = rows().batch(8).map(lambda x, y: (x * scale + count.assign_add(0.1), y))
        return none_ahead(added)

    expected = fit(counting(tf.Variable(0.0), tf.Variable(2.0)), None)
    fit(counting(tf.Variable(0.0), tf.Variable(2.0)), tmp_path)
    for step in (12, 10, 3):
        again = counting(tf.Variable(5.0), tf.Variable(2.0))
        assert fit(again, tmp_path, resume=step) == expected

    count = tf.Variable(0.0)
    nested = tf.data.Dataset.range(2).flat_map(lambda i: counting(count, 2.0))
    for dataset in (counting(count, tf.Variable(2.0)), nested):
        variables = PipelineVariables(dataset)
        count.assign(1.5)
        kept = variables.get()
        count.assign(7.0)
        variables.set(kept)
        assert float(count) == 1.5


def test_rewritten_pipeline_has_the_users_own_variables():
    """Wherever functions captured them, also where a dataset is used twice."""
    count, scale = tf.Variable(0.0), tf.Variable([2.0, 3.0])
    other = tf.Variable(1.0)  # of the same shape as the first

    def changed(x, y):
        return x * scale[0] + count.assign_add(1.0), y + other

    base = rows().map(changed).batch(8)
    inner = tf.data.Dataset.range(2).interleave(
        lambda i: tf.data.Dataset.range(3).map(lambda j: scale[1] + other.read_value())
    )
    for dataset in (
        base.shuffle(9),
        tf.data.Dataset.zip(base, base).map(lambda a, b: a[0] + b[0]).shuffle(9),
        inner.map(lambda z: z + count.assign_add(1.0)).shuffle(9),
    ):
        assert not PipelineGraph(dataset).has_copies
        made = Pipeline(dataset, settings()).dataset
        assert made is not dataset
        count.assign(0.0)
        first = sorted(map(str, drawn(made.map(lambda *x: tf.nest.flatten(x)[0]))))
        assert float(count) > 0
        count.assign(0.0)
        scale.assign([4.0, 5.0])
        again = sorted(map(str, drawn(made.map(lambda *x: tf.nest.flatten(x)[0]))))
        assert again != first
        scale.assign([2.0, 3.0])


def remembering(calls):
    """Every batch is another one, as a closure's list makes it."""

    def scaled(x):
        calls.append(1)
        return x * np.float32(len(calls))

    def tensors(x, y):
        (x,) = tf.numpy_function(scaled, [x], [tf.float32])
        return tf.ensure_shape(x, [None, 4]), y

    return rows().batch(8).map(tensors)


@pytest.mark.parametrize("step", [5, 7, 10, 12])
def test_python_functions_that_remember_are_noticed(tmp_path, step):
    """At an epoch's end, too, the first one included: a second one would differ."""
    fit(remembering([]), tmp_path, stop_at=step + 1)
    with pytest.raises(DataNotResumableError, match="has different content now"):
        fit(remembering([]), tmp_path, resume=step)
    with pytest.warns(NotExactWarning, match="has different content now"):
        assert (
            len(fit(remembering([]), tmp_path, resume=step, on_data_change="warn"))
            == 15
        )


def test_epoch_before_is_looked_at_only_once_it_is_needed(tmp_path):
    """Also after another resume at the same place; a run that is over looks never."""
    calls = []
    fit(remembering(calls), tmp_path)
    assert len(calls) >= 15  # Keras looks at a batch, too
    calls.clear()
    fit(remembering(calls), tmp_path)
    assert len(calls) <= 2
    with pytest.raises(DataNotResumableError, match=": batch 1 of the iterator"):
        fit(remembering(calls), tmp_path, epochs=4)


def test_generators_of_python_functions_are_kept(tmp_path):
    def noisy():
        random = np.random.default_rng(3)
        add = lambda x: x + random.random(dtype="float32")  # noqa: E731

        def tensors(x, y):
            (x,) = tf.numpy_function(add, [x], [tf.float32])
            return tf.ensure_shape(x, [None, 4]), y

        return none_ahead(rows().batch(8).map(tensors))

    expected = fit(noisy(), None)
    assert fit(noisy(), tmp_path) == expected
    for step in (12, 10, 3):
        assert fit(noisy(), tmp_path, resume=step) == expected


@pytest.mark.filterwarnings("ignore:Not bit-exact. the data draws from these global")
def test_global_generators_that_a_pipeline_draws_from_ahead_of_training(tmp_path):
    """Where they stand at a checkpoint is chance: the replay knows better, and says."""

    def noisy():
        def add(x):
            return x + np.float32(np.random.random())

        def tensors(x, y):
            (x,) = tf.numpy_function(add, [x], [tf.float32])
            return tf.ensure_shape(x, [None, 4]), y

        dataset = rows().batch(8).map(tensors)
        return dataset.prefetch(3) if TENSORFLOW else none_ahead(dataset)

    np.random.seed(5)
    expected = fit(noisy(), None)
    np.random.seed(5)
    assert fit(noisy(), tmp_path) == expected
    for step in (12, 10, 3):
        np.random.seed(7)
        assert fit(noisy(), tmp_path, resume=step) == expected


def test_graph_names_what_has_state_outside():
    variable = tf.Variable(2.0)
    reads = rows().map(lambda x, y: (x * variable, y))
    assert PipelineGraph(reads).state_outside() == []
    writes = rows().map(lambda x, y: (x * variable.assign_add(1.0), y))
    assert "AssignAddVariableOp" in PipelineGraph(writes).state_outside()
    python = rows().map(lambda x, y: tf.py_function(lambda a: a, [x], tf.float32))
    assert PipelineGraph(python).state_outside() == ["EagerPyFunc"]


@pytest.mark.spread(over=["tensorflow"])
@pytest.mark.parametrize("counts", [[], [1, 1]])
def test_an_iterator_takes_the_draws_of_its_own_shuffles_alone(counts):
    from resilient.data.tf_data.iterator_object import IteratorKind

    def made():
        return IteratorKind(iter(tf.data.Dataset.range(9).shuffle(9, seed=1)))

    first = made()
    next(first.value)
    saved = first.state()
    second = made()
    with pytest.raises(ValueError, match=r"zip\(\)"):
        second.load(saved | {"counts": counts}, {})
    second.load(saved, {})
    assert next(second.value) == next(first.value)
