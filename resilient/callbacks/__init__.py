"""What callbacks know: captured between batches, put back in a new process.

``states`` is what an attempt calls. Below it, ``attributes`` captures what changed on a
callback since training began (``walk``, ``holdings``, ``kinds`` and ``remembered`` say
what counts as a value and how it is compared), and ``files``, ``event_files`` and
``orbax_steps`` know how far a callback that writes files had come.
"""
