"""What a callback changes in mid-training is said once, and then never resumed."""

import functools
import warnings

import keras
import numpy as np
import pytest
from support import fitting
from support.fitting import Do, Interrupt, Interrupted

from resilient import CheckpointMismatchError, NotExactWarning
from resilient.state.settings import contents_of_code

pytestmark = [
    pytest.mark.spread,
    pytest.mark.waits,
    pytest.mark.usefixtures("seeded"),
    # Keras on NumPy 2 (keras.Variable.__array__).
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't"),
]

TRACED = {"run_eagerly": False, "jit_compile": False}


class Change(keras.callbacks.Callback):
    """Changes the model after a batch, and ends the process before the next one.

    In between a checkpoint is made. Keras itself could not always go on.
    """

    def __init__(self, change=None, batch=2):
        super().__init__()
        self._change, self._batch = change, batch

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def on_train_batch_end(self, batch, logs=None):
        if self._change is not None and batch == self._batch:
            self._change(self.model)

    def on_train_batch_begin(self, batch, logs=None):
        if self._change is not None and batch == self._batch + 1:
            raise Interrupted


def built(net, optimizer):
    """The same optimizer, built for a model."""
    optimizer.build(net.trainable_variables)
    return optimizer


def puts(**settings):
    """Puts another Adam with these settings into a model."""

    def change(net):
        net.optimizer = built(net, keras.optimizers.Adam(**settings))

    return change


def puts_adamw(net):
    net.optimizer = built(net, keras.optimizers.AdamW())


def compiles(**changed):
    """Compiles a model again, as it was but for what is given."""

    def change(net):
        given = {"loss": "mse", "metrics": ["mae"], "run_eagerly": True}
        net.compile("adam", **given | changed)
        built(net, net.optimizer)

    return change


def sets(layer, name, value):
    """Sets an attribute of a layer, or of the model where that is None."""

    def change(net):
        setattr(net if layer is None else net.layers[layer], name, value)

    return change


CHANGES = {
    "another optimizer": (puts_adamw, ["optimizer", "optimizer.weight_decay"]),
    "clipping": (puts(clipnorm=1.0), ["optimizer.clipnorm"]),
    "a schedule": (
        puts(learning_rate=keras.optimizers.schedules.CosineDecay(0.1, 9)),
        ["optimizer.learning_rate"],
    ),
    "another loss": (compiles(loss="mae"), ["loss"]),
    "a loss object": (compiles(loss=keras.losses.Huber(delta=0.5)), ["loss"]),
    "loss weights": (compiles(loss_weights=[2.0]), ["loss_weights"]),
    "another metric": (compiles(metrics=["mse"]), ["metrics[0]"]),
    "one more metric": (compiles(metrics=["mae", "mse"]), ["metrics"]),
    "freezing": (
        sets(0, "trainable", False),
        ["layer 1 (Dense).trainable"],
    ),
    "freezing one weight": (
        lambda net: setattr(net.layers[0].kernel, "trainable", False),
        ["layers' variables that are not trained"],
    ),
    "another activation": (
        sets(0, "activation", keras.activations.tanh),
        ["layer 1 (Dense).activation"],
    ),
    "a regularizer": (
        sets(0, "kernel_regularizer", keras.regularizers.L2(0.1)),
        ["layer 1 (Dense).kernel_regularizer"],
    ),
    "a dtype policy": (
        sets(0, "dtype_policy", "bfloat16"),
        ["layer 1 (Dense).dtype_policy"],
    ),
    "a regularizer of a weight": (
        lambda net: setattr(
            net.layers[0].kernel, "regularizer", keras.regularizers.L2(0.1)
        ),
        ["layers' variable 0 (kernel).regularizer"],
    ),
    "a constraint of a weight": (
        lambda net: setattr(
            net.layers[0].kernel, "constraint", keras.constraints.NonNeg()
        ),
        ["layers' variable 0 (kernel).constraint"],
    ),
    "one more layer": (lambda net: net.add(keras.layers.Dense(1)), ["layers"]),
    "run_eagerly": (sets(None, "run_eagerly", False), ["run_eagerly"]),
    "steps_per_execution": (
        sets(None, "steps_per_execution", 2),
        ["steps_per_execution"],
    ),
}


def net(**compiling):
    return fitting.model(**{"metrics": ["mae"]} | compiling)


def changed_by(change, directory, **compiling):
    """Run until a callback changed the model; what the one warning names."""
    with pytest.warns(NotExactWarning, match="in the middle of training") as caught:
        fitting.interrupted(
            directory, net=net(**compiling), callbacks=[Change(change)], save_freq=1
        )
    (warning,) = [w for w in caught if w.category is NotExactWarning]
    return str(warning.message).split("\n  ")[1:]


def refused(directory, callbacks, **compiling):
    """Resume; what the refusal names, once it is clear that the model is untouched."""
    again = net(**compiling)
    again.fit(*(array[:8] for array in fitting.data()), batch_size=4, verbose=0)
    again.reset_metrics()  # as Keras does when training begins
    before = fitting.values(again)
    with pytest.raises(CheckpointMismatchError, match=r"Nothing.*was changed") as found:
        fitting.fit(again, directory, callbacks=callbacks, save_freq=1)
    fitting.assert_equal(before, again)
    return str(found.value).rpartition("\n")[0].split("\n  ")[1:]


@pytest.mark.parametrize("changed", CHANGES)
def test_a_change_in_mid_training_is_said_and_then_refused(changed, tmp_path):
    """In the same words: nothing but the start of another attempt may look alike."""
    change, names = CHANGES[changed]
    said = changed_by(change, tmp_path)
    assert [line.partition(": ")[0] for line in said][: len(names)] == names
    assert all(" when training began, " in line for line in said)
    assert all(line.endswith(" at the checkpoint") for line in said)
    assert refused(tmp_path, [Interrupt(), Change()]) == said


class Made(keras.losses.MeanSquaredError):
    """A loss that is made with something."""

    def __init__(self, of):
        super().__init__()
        self.of = of


def doubled(x):
    return 2 * x


def counter():
    """A function that remembers something."""
    count = 0

    def counts(step=0):
        nonlocal count
        count += step
        return count

    return counts


WITHIN = {
    "a list": (lambda: [1.0], lambda of: of.append(2.0)),
    "a long list": (lambda: [0] * 99, lambda of: of.reverse() or of.pop()),
    "an item of a long list": (lambda: [0] * 99, lambda of: of.__setitem__(98, 1)),
    "a list in a dict": (
        lambda: {"a": [1.0]},
        lambda of: of["a"].__setitem__(0, 2.0),
    ),
    "a dict": (lambda: {"a": 1.0}, lambda of: of.update(b=2.0)),
    "an array": (lambda: np.ones(3), lambda of: np.copyto(of, 2)),
    "a large array": (lambda: np.ones(2**22), lambda of: np.copyto(of, 2)),
    "an array in a list": (lambda: [np.ones(3)], lambda of: np.copyto(of[0], 2)),
    "what a function remembers": (counter, lambda of: of(2)),
    "what a partial is given": (
        lambda: functools.partial(doubled, x=[1]),
        lambda of: of.keywords["x"].append(2),
    ),
}


def shown(of):
    """What is in it, comparable."""
    if isinstance(of, functools.partial):
        return of.keywords
    if callable(of):
        return of()
    return keras.tree.map_structure(np.asarray, of)


@pytest.mark.parametrize("within", WITHIN)
def test_a_change_within_what_a_loss_is_made_with_is_restored(within, tmp_path):
    """Of which the loss knows nothing: it is the same object before and after."""
    make, change = WITHIN[within]
    expected = make()
    change(expected)
    exact(lambda net: change(net.loss.of), make, tmp_path, expected)


def exact(change, make, directory, expected):
    """Change a loss in a run that is interrupted; the resumed one has the change."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotExactWarning)
        fitting.interrupted(
            directory,
            net=net(loss=Made(make())),
            callbacks=[Change(change)],
            save_freq=1,
        )
        again = net(loss=Made(make()), seed=99)
        fitting.fit(again, directory, callbacks=[Interrupt(), Change()], save_freq=1)
    found, wanted = map(shown, (again.loss.of, expected))
    keras.tree.map_structure(np.testing.assert_array_equal, found, wanted)


@pytest.mark.parametrize("ones", [np.ones, keras.ops.ones])
def test_another_array_or_tensor_in_a_loss_is_restored(ones, tmp_path):
    exact(
        lambda net: setattr(net.loss, "of", 2 * ones(3)),
        lambda: ones(3),
        tmp_path,
        2 * np.ones(3),
    )


OTHERS = {
    "code": (lambda: lambda x: x, lambda: lambda x: x.T),
    "calls": (lambda: lambda x: 1 + np.sin(x), lambda: lambda x: 1 + np.cos(x)),
}


@pytest.mark.parametrize("what", OTHERS)
def test_another_function_is_refused(what, tmp_path):
    make, other = OTHERS[what]
    said = changed_by(
        lambda net: setattr(net.loss, "of", other()), tmp_path, loss=Made(make())
    )
    assert [line.partition(": ")[0] for line in said] == ["loss.of"]
    callbacks = [Interrupt(), Change()]
    assert refused(tmp_path, callbacks, loss=Made(make())) == said


class Remembering(keras.layers.Layer):
    """A layer with a cache and a log that it was made with, which its calls fill."""

    def __init__(self, cache=None, log=None, last=None):
        super().__init__()
        self.cache, self.log, self.last = {}, [], None

    def call(self, x):
        self.cache[str(x.shape)] = 1
        self.log.append(len(self.log))
        self.last = x * 2
        return x


class Recipe(dict):
    """A common recipe, which raises another error than it should."""

    __getattr__ = dict.__getitem__


class Secretive:
    def __getattr__(self, name):
        raise RuntimeError(name)


class Odd(keras.losses.MeanSquaredError):
    """A loss that is made with what is hard to look at."""

    def __init__(self, settings):
        super().__init__()
        self.settings = settings


@pytest.mark.parametrize(
    "compiling",
    [{}, pytest.param(TRACED, marks=pytest.mark.everywhere)],
    ids=["eager", "traced"],
)
def test_what_steps_change_by_themselves_is_no_change(compiling, tmp_path):
    """Containers and what functions count: each process does so anew."""

    def made(seed=5):
        count = 0

        def loss(y_true, y_pred):
            nonlocal count
            count += 1
            return keras.losses.mean_squared_error(y_true, y_pred)

        def of():
            return [keras.Input((3,)), Remembering(), *fitting.layers()[1:]]

        return fitting.model(of=of, loss=loss, seed=seed, **compiling)

    expected = made()
    expected.fit(**fitting.arguments(callbacks=[Interrupt()]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotExactWarning)
        fitting.interrupted(tmp_path, net=made(), save_freq=1)
        resumed = made(seed=99)
        fitting.fit(resumed, tmp_path, callbacks=[Interrupt()], save_freq=1)
    fitting.assert_equal(expected, resumed)


def test_what_is_hard_to_look_at_stands_in_nobodys_way(tmp_path):
    settings = [Recipe(a=1), Secretive(), functools.partial(doubled, x=Recipe())]
    settings.append(functools.partial(doubled, x=settings))  # they hold themselves
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotExactWarning)
        fitting.interrupted(tmp_path, net=net(loss=Odd(settings)), save_freq=1)
        again = net(loss=Odd(settings), seed=99)
        fitting.fit(again, tmp_path, callbacks=[Interrupt()], save_freq=1)


def test_a_function_is_told_alike_in_each_process():
    """Also where its code has a set of texts, whose order is another in each."""
    code = compile("x in {'a', 'b', 'c'}", "", "eval")
    assert ["'a'", "'b'", "'c'"] in contents_of_code(code)[2]


@pytest.mark.skipif(
    keras.backend.backend() != "torch", reason="tensors cannot be changed in place"
)
def test_a_tensor_that_is_changed_in_place_is_restored(tmp_path):
    exact(
        lambda net: net.loss.of.zero_(),
        lambda: keras.ops.ones(3),
        tmp_path,
        np.zeros(3),
    )


@pytest.mark.parametrize("eager", [True, False])
def test_attributes_of_losses_in_a_list_are_told_as_those_of_one(eager, tmp_path):
    """A number that the loss was not made with: put back, or said to be lost."""

    def change(net):
        net.loss[0].seen = 2

    def made(seed=5):
        loss = Made(None)
        loss.seen = 1
        return fitting.model(
            loss=[loss],
            metrics=["mae"],
            run_eagerly=eager,
            jit_compile=False,
            seed=seed,
        )

    eager = eager or keras.backend.backend() == "torch"
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", NotExactWarning)
        fitting.interrupted(
            tmp_path, net=made(), callbacks=[Change(change)], save_freq=1
        )
    told = [w for w in said if "loss[0].seen" in str(w.message)]
    assert len(told) == (not eager)
    resumed = made(seed=99)
    fitting.fit(resumed, tmp_path, callbacks=[Interrupt(), Change()], save_freq=1)
    assert resumed.loss[0].seen == (2 if eager else 1)


@pytest.mark.skipif(
    keras.backend.backend() == "torch", reason="Keras traces no steps there"
)
def test_a_setting_that_a_traced_step_has_baked_in_is_refused(tmp_path):
    """Put back before a resumed process traces, it would begin to count."""
    said = changed_by(sets(1, "rate", 0.1), tmp_path, **TRACED)
    assert said == [
        "layer 2 (Dropout).rate: 0.3 when training began, 0.1 at the checkpoint"
    ]
    assert refused(tmp_path, [Interrupt(), Change()], **TRACED) == said


def compiled_alike(model):
    """What no callback did differently: the same things, made anew."""
    compiles()(model)


@pytest.mark.parametrize(
    "change", [compiled_alike, sets(1, "rate", float("0.3"))], ids=["compiled", "set"]
)
def test_what_is_replaced_by_its_equal_is_no_change(change, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotExactWarning)
        fitting.interrupted(
            tmp_path, net=net(), callbacks=[Change(change)], save_freq=1
        )


class Width(keras.metrics.Mean):
    """A metric that learns in a first step what it was not told."""

    def __init__(self, width=None):
        super().__init__("width")
        self.width = width

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.width = y_pred.shape[-1]
        super().update_state(y_pred)


class Scaled(keras.layers.Layer):
    """A layer that learns it when it is built."""

    def __init__(self, width=None):
        super().__init__()
        self.width = width

    def build(self, shape):
        self.width = shape[-1]

    def call(self, x):
        return x / self.width


def lazy(seed=5):
    def of():
        return [Scaled(), *fitting.layers()[1:]]

    return fitting.model(of=of, metrics=[Width()], seed=seed, **TRACED)


def test_what_a_first_step_settles_is_no_change(tmp_path):
    """Not in the process that trains on, nor in the one that resumes."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotExactWarning)
        expected = lazy()
        expected.fit(**fitting.arguments(callbacks=[Interrupt()]))
        fitting.interrupted(tmp_path, net=lazy(), save_freq=1)
        resumed = lazy(seed=99)
        fitting.fit(resumed, tmp_path, callbacks=[Interrupt()], save_freq=1)
    fitting.assert_equal(expected, resumed)


class Swap(keras.callbacks.Callback):
    """Puts AdamW in the place of what the script compiles with, if it is not there."""

    def __init__(self, when, epochs=range(9)):
        super().__init__()
        self._when, self._epochs = when, epochs

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def on_train_begin(self, logs=None):
        if self._when == "train":
            puts_adamw(self.model)

    def on_epoch_begin(self, epoch, logs=None):
        swapped = type(self.model.optimizer).__name__ == "AdamW"
        if self._when == "epoch" and not swapped and epoch in self._epochs:
            puts_adamw(self.model)


@pytest.mark.parametrize(
    ("when", "save_freq"), [("train", 2), ("train", "epoch"), ("epoch", 2)]
)
def test_an_optimizer_that_every_attempt_puts_there_is_resumed(
    when, save_freq, tmp_path
):
    """Before its first batch, and before the state is put back."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotExactWarning)
        expected = net()
        expected.fit(**fitting.arguments(callbacks=[Interrupt(), Swap(when)]))
        fitting.interrupted(
            tmp_path, 1, 4, net=net(), callbacks=[Swap(when)], save_freq=save_freq
        )
        resumed = net(seed=99)
        callbacks = [Interrupt(), Swap(when)]
        fitting.fit(resumed, tmp_path, callbacks=callbacks, save_freq=save_freq)
    assert type(resumed.optimizer).__name__ == "AdamW"
    fitting.assert_equal(expected, resumed)


OTHER = "optimizer: the checkpoint has 'AdamW', this run has 'Adam'"


@pytest.mark.parametrize(
    ("save_freq", "epochs"),
    [
        pytest.param(2, [0], id="first epoch"),
        pytest.param("epoch", range(9), id="late"),
    ],
)
def test_an_optimizer_that_is_not_there_when_it_is_put_back_is_refused(
    save_freq, epochs, tmp_path
):
    """Its slots would go to the optimizer of the script."""
    callbacks = [Swap("epoch", epochs)]
    fitting.interrupted(
        tmp_path, 1, 4, net=net(), callbacks=callbacks, save_freq=save_freq
    )
    callbacks = [Interrupt(), Swap("epoch", epochs)]
    assert refused(tmp_path, callbacks)[0] == OTHER


def test_a_change_is_said_once_however_often_it_is_saved(tmp_path):
    """Also where its value goes on changing."""

    model = net()
    swap = Do(lambda: puts(clipnorm=1.0)(model), epoch=0, batch=1)
    again = Do(lambda: puts(clipnorm=2.0)(model), epoch=0, batch=3)
    with pytest.warns(NotExactWarning) as caught:
        fitting.interrupted(
            tmp_path, 0, 4, net=model, callbacks=[swap, again], save_freq=1
        )
    assert [w.category for w in caught].count(NotExactWarning) == 1


class SetAtEpoch(keras.callbacks.Callback):
    """Sets the dropout rate when an epoch begins."""

    def __init__(self, epoch=1):
        super().__init__()
        self._at = epoch

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self._at:
            dropout = next(
                x for x in self.model.layers if isinstance(x, keras.layers.Dropout)
            )
            dropout.rate = 0.4


def test_a_change_before_the_first_batch_of_a_resumed_epoch_is_refused(tmp_path):
    """The interrupted run traced its step before, and went on with the old rate."""
    fitting.fit(fitting.model(**TRACED), tmp_path, callbacks=[SetAtEpoch()], epochs=1)
    net = fitting.model(**TRACED)
    if keras.backend.backend() == "torch":  # each step reads the rate anew
        fitting.fit(net, tmp_path, callbacks=[SetAtEpoch()], epochs=2)
        return
    with pytest.raises(CheckpointMismatchError, match=r"rate: .*0\.4"):
        fitting.fit(net, tmp_path, callbacks=[SetAtEpoch()], epochs=2)


@pytest.mark.parametrize("within", [False, True])
def test_a_change_in_a_later_epoch_is_said_as_where_nothing_was_resumed(
    within, tmp_path
):
    """From an epoch's end, and from within an epoch."""
    late = SetAtEpoch(epoch=2)
    if within:
        net = fitting.model(**TRACED)
        fitting.interrupted(tmp_path, epoch=0, batch=5, net=net, callbacks=[late])
        callbacks = [Interrupt(), late]
    else:
        callbacks = [late]
        fitting.fit(fitting.model(**TRACED), tmp_path, callbacks=callbacks, epochs=1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", NotExactWarning)
        fitting.fit(fitting.model(**TRACED), tmp_path, callbacks=callbacks, epochs=3)
    told = [str(w.message) for w in said if "rate" in str(w.message)]
    assert len(told) == (keras.backend.backend() != "torch")
