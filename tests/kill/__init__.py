"""The proof: runs killed anywhere end with the bytes of a run that was left alone.

``server`` forks attempts from a process that has only imported a backend (see
``support.forking``), ``attempt`` is what such a child does,
``record`` is what it leaves behind, ``scenarios`` is what is trained, ``harness`` is
what the tests talk to. One body for every backend: KERAS_BACKEND decides.
"""
