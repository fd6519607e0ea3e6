"""KerasHub: a small BERT classifier from a configuration, first its head, then all."""

import keras
import keras_hub
import numpy as np
from digest import show

keras.utils.set_random_seed(7)
rng = np.random.default_rng(7)
tokens = rng.integers(1, 64, size=(128, 12))
x = {
    "token_ids": tokens,
    "segment_ids": np.zeros_like(tokens),
    "padding_mask": np.ones_like(tokens),
}
y = (tokens[:, 0] > 32).astype("int64")

backbone = keras_hub.models.BertBackbone(
    vocabulary_size=64,
    num_layers=1,
    num_heads=2,
    hidden_dim=16,
    intermediate_dim=32,
    max_sequence_length=12,
)
model = keras_hub.models.BertTextClassifier(backbone, num_classes=2, preprocessor=None)


def compile_model(rate):
    model.compile(
        optimizer=keras.optimizers.Adam(rate),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


backbone.trainable = False
compile_model(1e-2)
head = model.fit(x, y, batch_size=8, epochs=2, verbose=0)
backbone.trainable = True
compile_model(1e-3)
whole = model.fit(x, y, batch_size=8, epochs=3, validation_split=0.25, verbose=0)
show(model, {"head": head.history, "whole": whole.history})
