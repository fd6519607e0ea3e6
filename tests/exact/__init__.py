"""Black box: programs of users, killed and started again, end with the same bytes.

``table`` says what is trained and where it is killed; ``fits``, ``sources`` and
``loops`` are the programs; ``attempt`` is what one process does, ``killing`` how it
dies, ``record`` what it leaves; ``server`` forks attempts; ``runner`` asks for them and
says how they ended. Of ``resilient`` nothing is used but its public names.
"""
