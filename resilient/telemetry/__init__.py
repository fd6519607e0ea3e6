"""What a run reports about itself: events, heartbeat, lines for the console, goodput.

It only appends and reads. It needs neither Keras nor a backend, so that ``supervise``
and ``cli`` can read it while a training hangs.
"""
