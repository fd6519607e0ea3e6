"""What a run reports about itself: events, heartbeat, console lines, goodput.

It only appends and reads. It needs neither Keras nor a backend, so ``supervise`` and
``cli`` can read it while training hangs.
"""
