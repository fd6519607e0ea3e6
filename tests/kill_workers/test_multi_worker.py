"""Two workers of TensorFlow's ``MultiWorkerMirroredStrategy``, on this machine."""

import json
from collections.abc import Iterator
from pathlib import Path

import keras
import pytest
import tf_cluster

pytestmark = [
    pytest.mark.skipif(
        keras.backend.backend() != "tensorflow", reason="tf.distribute is TensorFlow's"
    ),
    pytest.mark.timeout(900),  # a start of several processes, for many cases
]

HERE = Path(__file__).parent
WORKERS = ("worker", "worker")
CHIEF = ("chief", "worker")


def results(printed: str) -> Iterator[list]:
    """What a process printed, but for what TensorFlow did."""
    for line in printed.splitlines():
        if line.startswith('["'):
            yield json.loads(line)


@pytest.mark.long  # test_elastic_workers.py goes from two devices to two workers
@pytest.mark.parametrize(("jobs", "names"), [(WORKERS, ()), (CHIEF, ("FILE",))])
def test_two_workers_train_as_two_devices_of_one_process(jobs, names, tmp_path):
    """Keras's own fit, corrected: the same bytes on every replica."""
    script = HERE / "multi_worker.py"
    (printed,) = tf_cluster.run(script, tmp_path, *names)
    expected = {name: result for name, *result in results(printed)}
    assert len(expected) == (len(names) or 10)
    workers = tf_cluster.run(script, tmp_path, *names, jobs=jobs)
    for replica, worker in enumerate(map(results, workers)):
        actual = {name: result for name, *result in worker}
        assert list(actual) == list(expected)
        for name, (*all_returned, digests) in expected.items():
            *returned, (digest,) = actual[name]
            assert returned == all_returned, name
            assert digest == digests[replica], name


def test_data_gets_back_on_every_worker(tmp_path):
    """In Keras's order, spread over workers as the dataset's options say."""
    workers = tf_cluster.run(HERE / "positions.py", tmp_path, jobs=WORKERS)
    assert len(workers) == len(WORKERS)
    for (unseeded, *found), *seeded in map(results, workers):
        keras_own, ours, resumed = found
        assert (unseeded, len(seeded)) == ("OFF, without a seed", 7)
        # Not half as many: that would be another way to spread it.
        assert [len(epoch) for epoch in ours] == [len(epoch) for epoch in keras_own]
        assert resumed == ours[1]
        for name, keras_own, ours, resumed in seeded:
            assert (name, ours) == (name, keras_own)
            assert (name, resumed) == (name, ours[1])
