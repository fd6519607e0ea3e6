"""Black box: programs of users, killed and started again, end with the same bytes.

``table`` says what is trained and where it is killed, ``fits`` and ``loops`` are the
programs, ``attempt`` is what one process does, ``killing`` is how it dies, ``record``
is what it leaves, ``server`` forks attempts, ``runner`` asks for them and compares. Of
``resilient`` nothing is used but its public names.
"""
