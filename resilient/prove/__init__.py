"""Proves that a script resumes exactly: runs it, kills it, runs it again, and compares.

``experiment`` is what others call, and ``proof`` its result; ``script`` starts the
user's script and kills it at ``moments``, ``recorded`` reads what its runs recorded,
``reasons`` finds out why they differ, and ``suspects`` reads the script for code that
does not repeat. It loads neither Keras nor a backend: they run in the script's own
processes.
"""
