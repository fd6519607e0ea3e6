"""What Keras keeps for itself in an object is told from what the user keeps there."""

import keras
import pytest
from support import fitting

from resilient.keras_internals.bookkeeping import owned_by

# Keras on NumPy 2 (keras.Variable.__array__).
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't")


class Mine(keras.Sequential):
    def __init__(self, layers):
        super().__init__(layers)
        self._seen, self.counted = 0, 0


class Own(keras.layers.Dense):
    def __init__(self, units):
        super().__init__(units)
        self._calls, self.log = 0, []


@pytest.mark.parametrize("eager", [True, False])
def test_private_names_are_keras_own_if_its_code_stores_them(eager):
    def layers():
        return [*fitting.layers(), Own(1)]

    net = fitting.model(of=layers, cls=Mine, run_eagerly=eager, metrics=["mae"])
    net.fit(*fitting.data(), epochs=1, verbose=0)
    net.evaluate(*fitting.data(), verbose=0)
    users = {"_seen", "counted", "_calls", "log"}
    for part in (net, *net.layers, net.optimizer, *net.metrics):
        private = {name for name in vars(part) if name.startswith("_")}
        owned = private & owned_by(type(part))
        assert private - owned <= users
        assert users.isdisjoint(owned_by(type(part)))


def test_what_any_module_of_torch_has_is_torchs_own():
    """``train()`` and ``eval()``, between which a script switches, are no state."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Sequential):
        pass

    assert {"training", "_buffers"} <= owned_by(Net)
    assert "history" not in owned_by(Net)
