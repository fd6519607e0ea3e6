"""BayesFlow: a posterior of two parameters, from simulations made beforehand."""

import bayesflow
import keras
import numpy as np
from digest import show

keras.utils.set_random_seed(7)
rng = np.random.default_rng(7)


def prior():
    return {"theta": rng.normal(size=2)}


def likelihood(theta):
    return {"x": theta + 0.1 * rng.normal(size=2)}


simulator = bayesflow.make_simulator([prior, likelihood])
workflow = bayesflow.BasicWorkflow(
    simulator=simulator,
    inference_network=bayesflow.networks.CouplingFlow(
        depth=2, subnet_kwargs={"widths": (16, 16)}
    ),
    inference_variables=["theta"],
    inference_conditions=["x"],
    standardize=None,
)
history = workflow.fit_offline(
    simulator.sample(256),
    epochs=3,
    batch_size=16,
    validation_data=simulator.sample(32),
    verbose=0,
)
show(workflow.approximator, history.history)
