"""A resume builds the optimizer early, and its variables are named as Keras names them.

Who saves, exports or inspects by path sees no difference.
"""

import keras
import pytest
from support import fitting

pytestmark = [
    pytest.mark.everywhere,
    pytest.mark.usefixtures("seeded"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]


def net(built):
    keras.backend.clear_session()  # automatic names begin anew
    layers = fitting.layers() if built else fitting.layers()[1:]
    inner = keras.optimizers.Adam()
    return fitting.model(
        of=lambda: layers,
        optimizer=keras.optimizers.LossScaleOptimizer(inner),
        run_eagerly=False,
    )


def names(model):
    return [variable.path for variable in model.optimizer.variables]


@pytest.mark.parametrize("built", [True, False])
def test_names_are_those_of_keras(built, tmp_path):
    alone = net(built)
    alone.fit(**fitting.arguments(epochs=1))
    first = fitting.interrupted(tmp_path, net=net(built))
    assert names(first) == names(alone)
    resumed = net(built)
    fitting.fit(resumed, tmp_path, callbacks=[fitting.Interrupt()], save_freq=4)
    assert names(resumed) == names(alone)
