"""keras-rs: a two-tower retrieval model, trained by a step of its own."""

import keras
import keras_rs
import numpy as np
from digest import show

keras.utils.set_random_seed(7)
rng = np.random.default_rng(7)
users = rng.integers(0, 32, size=512)
items = (users + rng.integers(0, 4, size=512)) % 48


class Retrieval(keras.Model):
    def __init__(self):
        super().__init__()
        self.users = keras.layers.Embedding(32, 8)
        self.items = keras.layers.Embedding(48, 8)
        self.retrieval = keras_rs.layers.BruteForceRetrieval(k=5, return_scores=False)
        self.loss_fn = keras.losses.MeanSquaredError()

    def build(self, shape):
        self.users.build(shape)
        self.items.build(shape)
        self.retrieval.candidate_embeddings = self.items.embeddings
        self.retrieval.build(shape)
        super().build(shape)

    def call(self, inputs, training=False):
        user = self.users(inputs)
        found = {"user": user}
        if not training:
            found["items"] = self.retrieval(user)
        return found

    def compute_loss(self, x, y, y_pred, sample_weight, training=True):
        scores = keras.ops.sum(y_pred["user"] * self.items(y), axis=-1)
        return self.loss_fn(keras.ops.ones_like(scores), scores)


model = Retrieval()
model.compile(optimizer=keras.optimizers.Adagrad(0.1))
history = model.fit(
    *(users[:384], items[:384]),
    epochs=3,
    batch_size=16,
    validation_data=(users[384:], items[384:]),
    verbose=0,
)
show(model, history.history)
