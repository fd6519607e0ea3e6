"""scikeras: a classifier of digits, cross-validated by scikit-learn, then fitted."""

import keras
from digest import show
from scikeras.wrappers import KerasClassifier
from sklearn.datasets import load_digits
from sklearn.model_selection import cross_val_score

x, y = load_digits(n_class=4, return_X_y=True)
x = (x / 16).astype("float32")


def make_model(meta):
    return keras.Sequential(
        [
            keras.Input((64,)),
            keras.layers.Dense(16, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(meta["n_classes_"], activation="softmax"),
        ]
    )


keras.utils.set_random_seed(7)
classifier = KerasClassifier(
    make_model,
    loss="sparse_categorical_crossentropy",
    optimizer="adam",
    metrics=["accuracy"],
    batch_size=32,
    epochs=3,
    verbose=0,
)
scores = cross_val_score(classifier, x, y, cv=3)
classifier.fit(x, y)
show(classifier.model_, {"scores": list(scores), **classifier.history_})
