"""Proves that a script resumes exactly: runs it, kills it, runs it again, and compares.

``experiment`` is what others call; ``script`` starts the user's script and kills it,
and ``recorded`` reads what its runs recorded, and finds where they differ. It loads
neither Keras nor a backend: they run in the script's own processes.
"""
