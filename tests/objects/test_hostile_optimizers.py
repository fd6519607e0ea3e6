"""The state of an optimizer of PyTorch that it never gave."""

import keras
import pytest

from resilient.serialization.schema import MalformedError

if keras.backend.backend() != "torch":
    pytest.skip("about torch", allow_module_level=True)

import torch

from resilient.objects.adapters.torch_objects import TorchOptimizerKind
from resilient.serialization.classes import Known
from resilient.serialization.json_values import encode

ODD = {
    "nothing": lambda state: {},
    "no groups": lambda state: state | {"param_groups": []},
    "groups of numbers": lambda state: state | {"param_groups": [3]},
    "no parameters": lambda state: state | {"param_groups": [{"lr": 1.0}]},
    "no state": lambda state: state | {"state": 3},
    "a state of no parameter": lambda state: state | {"state": {9: {}}},
    "no betas": lambda state: (
        state
        | {
            "param_groups": [
                {k: v for k, v in group.items() if k != "betas"}
                for group in state["param_groups"]
            ]
        }
    ),
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_a_state_that_it_never_gave(odd):
    optimizer = torch.optim.Adam([torch.zeros(2, requires_grad=True)])
    saved = encode(odd(optimizer.state_dict()), {}, "x", Known())
    with pytest.raises(MalformedError, match="the state of an optimizer"):
        TorchOptimizerKind(optimizer).restore(saved, {})
