"""A program that calls fit in several processes: folds_in_processes.py pool | scripts.

``pool``: of ``concurrent.futures``; ``scripts``: two of its own at the same time.
"""

import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context


def fold(number):
    import keras
    import numpy as np

    class Wait(keras.callbacks.Callback):
        def on_train_end(self, logs=None):
            if sys.argv[1] == "fold":
                sys.stdin.read()  # until the program has seen the other one end

    net = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    net.compile("sgd", "mse")
    x = np.full((8, 2), number, "float32")
    net.fit(x, x[:, :1], verbose=0, callbacks=[Wait()])


def run(number):
    command = (sys.executable, __file__, "fold", str(number))
    return subprocess.Popen(command, stdin=subprocess.PIPE)


if __name__ == "__main__":
    if sys.argv[1] == "fold":
        fold(int(sys.argv[2]))
    elif sys.argv[1] == "pool":
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            list(pool.map(fold, range(2)))
    else:
        folds = [run(number) for number in range(2)]
        while all(each.poll() is None for each in folds):
            pass
        for each in folds:
            each.communicate()
        sys.exit(max(each.returncode for each in folds))
