"""Strategies that are refused, and those that are not."""

import keras
import pytest

from resilient import NotSupportedError
from resilient.distributed.strategies.base import parallel_strategy

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="tf.distribute is TensorFlow's"
)


def test_parameter_servers_are_refused_with_what_to_do_instead():
    import tensorflow as tf

    # Made without the cluster that it would wait for.
    kind = tf.distribute.ParameterServerStrategy
    strategy = kind.__new__(kind)
    with pytest.raises(NotSupportedError, match="ClusterCoordinator") as found:
        parallel_strategy(strategy)
    assert "Received: ParameterServerStrategy" in str(found.value)


def test_default_and_mirrored_strategies_are_supported():
    import tensorflow as tf

    assert parallel_strategy(tf.distribute.get_strategy()).count == 1
    assert parallel_strategy(tf.distribute.MirroredStrategy()).count == 1
