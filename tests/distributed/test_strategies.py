"""Strategies that are refused, and those that are not."""

import keras
import pytest

from resilient import NotSupportedError
from resilient.distributed.strategies.supported import require_supported

pytestmark = pytest.mark.skipif(
    keras.backend.backend() != "tensorflow", reason="tf.distribute is TensorFlow's"
)


def test_parameter_servers_are_refused_with_what_to_do_instead():
    import tensorflow as tf

    # Made without the cluster that it would wait for.
    kind = tf.distribute.ParameterServerStrategy
    strategy = kind.__new__(kind)
    with pytest.raises(NotSupportedError, match="ClusterCoordinator") as found:
        require_supported(strategy)
    assert "Received: ParameterServerStrategy" in str(found.value)


def test_default_and_mirrored_strategies_are_supported():
    import tensorflow as tf

    require_supported(tf.distribute.get_strategy())
    require_supported(tf.distribute.MirroredStrategy())
