"""Every setting of Keras's objects is among the facts that a resume compares."""

import copy
import itertools

import keras
import pytest

from resilient.state.settings import Settings

pytestmark = [
    pytest.mark.usefixtures("seeded"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]

L, R = keras.layers, keras.regularizers
LAYERS = {
    "Dense": lambda: L.Dense(
        3, "relu", kernel_regularizer=R.L1L2(0.1, 0.2), bias_constraint="non_neg"
    ),
    "EinsumDense": lambda: L.EinsumDense("abc,cd->abd", (None, 3), bias_axes="d"),
    "Conv1D": lambda: L.Conv1D(2, 2, padding="same", dilation_rate=2),
    "SeparableConv1D": lambda: L.SeparableConv1D(2, 2, depth_multiplier=2),
    "Conv1DTranspose": lambda: L.Conv1DTranspose(2, 2, padding="same"),
    "BatchNormalization": lambda: L.BatchNormalization(momentum=0.9),
    "LayerNormalization": L.LayerNormalization,
    "GroupNormalization": lambda: L.GroupNormalization(2),
    "UnitNormalization": L.UnitNormalization,
    "Normalization": lambda: L.Normalization(
        mean=[1.0, 2, 3, 4], variance=[2.0, 2, 2, 2]
    ),
    "Rescaling": lambda: L.Rescaling(0.5, offset=1.0),
    "Discretization": lambda: L.Discretization([0.0, 1.0, 2.0]),
    "LSTM": lambda: L.LSTM(3, dropout=0.1, return_sequences=True),
    "GRU": lambda: L.GRU(3, reset_after=False),
    "SimpleRNN": lambda: L.SimpleRNN(3, go_backwards=True),
    "Bidirectional": lambda: L.Bidirectional(L.GRU(3), merge_mode="sum"),
    "TimeDistributed": lambda: L.TimeDistributed(L.Dense(3, "tanh")),
    "MultiHeadAttention": lambda: L.MultiHeadAttention(2, 3, dropout=0.1),
    "Attention": lambda: L.Attention(use_scale=True),
    "Dropout": lambda: L.Dropout(0.1, noise_shape=(None, 1, 4)),
    "AlphaDropout": lambda: L.AlphaDropout(0.1),
    "GaussianNoise": lambda: L.GaussianNoise(0.1),
    "ActivityRegularization": lambda: L.ActivityRegularization(0.1, 0.2),
    "LeakyReLU": lambda: L.LeakyReLU(0.1),
    "PReLU": lambda: L.PReLU(shared_axes=[1]),
    "ELU": lambda: L.ELU(0.9),
    "Softmax": lambda: L.Softmax(axis=1),
    "MaxPooling1D": lambda: L.MaxPooling1D(2, strides=1),
    "UpSampling1D": lambda: L.UpSampling1D(2),
    "ZeroPadding1D": lambda: L.ZeroPadding1D(2),
    "Cropping1D": lambda: L.Cropping1D(1),
    "Reshape": lambda: L.Reshape((4, 8)),
    "Permute": lambda: L.Permute((2, 1)),
    "RepeatVector": lambda: L.RepeatVector(2),
    "Masking": lambda: L.Masking(0.5),
    "Concatenate": lambda: L.Concatenate(axis=1),
    "Dot": lambda: L.Dot(axes=1, normalize=True),
    "RandomRotation": lambda: L.RandomRotation(0.1, fill_mode="constant"),
    "RandomZoom": lambda: L.RandomZoom(0.1),
    "SpectralNormalization": lambda: L.SpectralNormalization(L.Dense(3)),
}
optimizers, S = keras.optimizers, keras.optimizers.schedules
OPTIMIZERS = {
    **{
        name: getattr(optimizers, name)
        for name in ("Adam", "AdamW", "Adamax", "Adagrad", "Adadelta", "RMSprop")
    },
    **{
        name: getattr(optimizers, name)
        for name in ("SGD", "Nadam", "Ftrl", "Lion", "Lamb")
    },
    "Adafactor": optimizers.Adafactor,
    "clipped": lambda: optimizers.SGD(
        0.1, 0.9, clipnorm=1.0, gradient_accumulation_steps=2
    ),
    "averaged": lambda: optimizers.Adam(use_ema=True, ema_overwrite_frequency=3),
    "scaled": lambda: optimizers.LossScaleOptimizer(optimizers.Adam(clipvalue=1.0)),
    "cosine": lambda: optimizers.SGD(
        S.CosineDecay(0.1, 9, warmup_target=0.2, warmup_steps=2)
    ),
    "exponential": lambda: optimizers.SGD(S.ExponentialDecay(0.1, 9, 0.5)),
    "polynomial": lambda: optimizers.SGD(S.PolynomialDecay(0.1, 9)),
    "piecewise": lambda: optimizers.SGD(
        S.PiecewiseConstantDecay([3, 5], [0.1, 0.2, 0.3])
    ),
}
LOSSES = {
    "Huber": keras.losses.Huber,
    "BinaryCrossentropy": keras.losses.BinaryCrossentropy,
    "BinaryFocalCrossentropy": keras.losses.BinaryFocalCrossentropy,
    "CategoricalFocalCrossentropy": keras.losses.CategoricalFocalCrossentropy,
    "SparseCategoricalCrossentropy": keras.losses.SparseCategoricalCrossentropy,
    "CosineSimilarity": keras.losses.CosineSimilarity,
    "MeanSquaredError": keras.losses.MeanSquaredError,
    "Dice": keras.losses.Dice,
    "Tversky": keras.losses.Tversky,
}
M = keras.metrics
METRICS = {
    "BinaryAccuracy": lambda: M.BinaryAccuracy(threshold=0.4),
    "AUC": lambda: M.AUC(num_thresholds=9),
    "Precision": lambda: M.Precision(top_k=2),
    "Recall": lambda: M.Recall(thresholds=[0.2, 0.6]),
    "F1Score": lambda: M.F1Score(average="micro", threshold=0.3),
    "TopKCategoricalAccuracy": lambda: M.TopKCategoricalAccuracy(k=2),
    "PrecisionAtRecall": lambda: M.PrecisionAtRecall(0.3, num_thresholds=9),
    "BinaryCrossentropy": lambda: M.BinaryCrossentropy(label_smoothing=0.1),
    "MeanIoU": lambda: M.MeanIoU(num_classes=3),
}

# What a config has that needs no comparison: names, seeds, which are restored, and what
# acts only before the first batch. Keras's docs give the rest.
NOT_COMPARED = {
    *("name", "seed", "module", "registered_name", "build_config", "dtype"),
    # Rates in variables are compared apart, and the checkpoint's wins.
    "learning_rate",
    # What a class of Keras takes and does not use, or computes from another.
    *("from_logits_", "batch_input_shape"),
}


def leaves(value, path=()):
    """Every plain leaf of a config, with its path."""
    if isinstance(value, dict):
        for key, item in value.items():
            if key not in NOT_COMPARED and not key.endswith("_initializer"):
                yield from leaves(item, (*path, key))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from leaves(item, (*path, place))
    elif isinstance(value, (bool, int, float, str)):
        yield path, value


WORDS = [
    *("relu", "tanh", "same", "valid", "channels_first", "sum", "concat", "none"),
    *("micro", "macro", "PR", "ROC", "minoring", "majoring", "constant", "wrap"),
    *("nearest", "bilinear", "non_neg", "sum_over_batch_size", "dot", "concat", "mul"),
]


def others(value):
    """Other values of the same kind."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [value + 1, value * 2, value / 2, value - 1]
    return [word for word in WORDS if word != value]


def changed(config, path, value):
    copied = copy.deepcopy(config)
    inside = copied
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    return copied


def facts(kind, thing):
    net = keras.Sequential(
        [keras.Input((2,)), thing if kind == "layer" else L.Dense(2)]
    )
    if kind == "optimizer":
        net.compile(thing, "mse")
    elif kind == "loss":
        net.compile("sgd", [thing])
    else:
        net.compile("sgd", "mse", metrics=[thing] if kind == "metric" else None)
    return Settings(net, whole=True).facts


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("layer", name) for name in LAYERS),
        *(("optimizer", name) for name in OPTIMIZERS),
        *(("loss", name) for name in LOSSES),
        *(("metric", name) for name in METRICS),
    ],
)
def test_each_leaf_of_a_config_is_compared(kind, name):
    every = {
        "layer": LAYERS,
        "optimizer": OPTIMIZERS,
        "loss": LOSSES,
        "metric": METRICS,
    }
    make = every[kind][name]
    base = make()
    config = json_of(base)
    assert differing(kind, base, base.__class__.from_config(copy.deepcopy(config))) == 0
    silent, tried = [], 0
    for path, value in leaves(config):
        for other in others(value):
            new = made(type(base), changed(config, path, other))
            if new is None or json_of(new) == config:
                continue
            tried += 1
            if not differing(kind, base, new):
                silent.append((path, value, other))
            break
    assert tried
    assert not silent


def json_of(thing):
    return keras.saving.serialize_keras_object(thing)["config"]


def made(cls, config):
    """The object with this config; None if Keras refuses it."""
    try:
        return cls.from_config(config)
    except Exception:  # Keras raises whatever it likes
        return None


def differing(kind, one, other):
    a, b = ({} if each is None else settings(kind, each) for each in (one, other))
    return sum(repr(a.get(name)) != repr(b.get(name)) for name in a | b)


def settings(kind, thing):
    """The facts about an object."""
    if kind == "layer":
        if isinstance(thing, L.Normalization):  # what it is given is there when built
            thing.build((2, 8, 4))
        return Settings(thing, whole=True).facts
    return facts(kind, thing)


def test_variables_that_are_not_decayed_are_compared():
    def facts(**excluded):
        layer = L.Dense(2)
        layer.build((None, 3))
        optimizer = keras.optimizers.AdamW()
        variables = [getattr(layer, name) for name in excluded.pop("variables", ())]
        optimizer.exclude_from_weight_decay(variables, **excluded)
        return settings("optimizer", optimizer)

    none, names = facts(), {"var_names": ["bias", "scale"]}
    assert facts(**names) == facts(var_names=["scale", "bias"])
    found = [none, facts(**names), facts(var_names=["bias"]), facts(variables=["bias"])]
    assert all(a != b for a, b in itertools.combinations(found, 2))


RATE = 1.0


class Own(keras.losses.Loss):
    FACTOR = 2.0

    def call(self, y_true, y_pred, power=2):
        return own(y_true, y_pred) * self.FACTOR

    def again(self):
        return super().__init__


def own(y_true, y_pred):
    return keras.ops.mean(y_true - y_pred) * RATE


@pytest.mark.parametrize("where", ["RATE", "Own.FACTOR", "defaults"])
def test_what_methods_use_and_classes_hold_is_compared(monkeypatch, where):
    def facts():
        model = keras.Sequential([keras.Input((4,)), L.Dense(1)])
        model.compile(loss=Own())
        return Settings(model, whole=True).facts

    before = facts()
    assert facts() == before
    if where == "RATE":
        monkeypatch.setitem(globals(), "RATE", 3.0)
    elif where == "Own.FACTOR":
        monkeypatch.setattr(Own, "FACTOR", 3.0)
    else:
        monkeypatch.setattr(Own.call, "__defaults__", (3,))
    now = facts()
    (name,) = (name for name in before | now if before.get(name) != now.get(name))
    assert name in ("Own.call uses own uses RATE", "Own.FACTOR", "Own.call[0]")
