"""Run a program that knows nothing of us, and kill it after some batches.

    killed.py KILLS COUNT PROGRAM [ARGUMENTS ...]

Of its attempts (counted in the file COUNT), the n-th is killed after as many batches as
the n-th number of KILLS; those that are left run to the end.
"""

import os
import runpy
import signal
import sys
from pathlib import Path

import keras

kills, count = [int(n) for n in sys.argv[1].split(",")], Path(sys.argv[2])
attempt = int(count.read_text()) if count.exists() else 0
count.write_text(str(attempt + 1))
kill = dict(enumerate(kills)).get(attempt)
batches = 0
ended = keras.callbacks.CallbackList.on_train_batch_end


def batch_ended(self, *args, **kwargs):
    global batches
    ended(self, *args, **kwargs)
    batches += 1
    if batches == kill:
        os.kill(os.getpid(), signal.SIGKILL)


keras.callbacks.CallbackList.on_train_batch_end = batch_ended
sys.argv[:] = sys.argv[3:]
runpy.run_path(sys.argv[0], run_name="__main__")
