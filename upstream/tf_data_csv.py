"""``tf.data`` restores an iterator over a CSV file at the wrong line.

Of 60 rows, 20 are drawn, and the iterator is saved; restored, it yields 2 of the other
40. ``make_csv_dataset`` reads through the same class.

Backends: tensorflow
"""

import os
import sys
import tempfile

import tensorflow as tf

with tempfile.TemporaryDirectory() as directory:
    name = os.path.join(directory, "rows.csv")
    with open(name, "w") as file:
        file.write("a\n" + "".join(f"{number}\n" for number in range(60)))
    data = tf.data.experimental.CsvDataset(name, [tf.int64], header=True)
    iterator = iter(data)
    for _ in range(20):
        next(iterator)
    saved = tf.train.Checkpoint(iterator=iterator)
    path = saved.write(os.path.join(directory, "a"))
    resumed = iter(data)
    tf.train.Checkpoint(iterator=resumed).read(path)
    rest = [int(number) for (number,) in resumed]
if rest == list(range(20, 60)):
    sys.exit("gone: the rows after the saved ones")
print(f"shown: {len(rest)} rows where 40 are due")
