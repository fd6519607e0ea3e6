"""What a run tells about itself: events, heartbeat, lines for the console, goodput.

It only appends and reads. It needs neither Keras nor a backend, so that ``supervise``
and ``cli`` can read it beside a training that hangs.
"""
