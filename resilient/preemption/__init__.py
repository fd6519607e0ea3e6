"""Being asked to stop: signals, a file to touch, notices of clouds.

``options`` is what the user chooses, ``requests`` the flag, ``signals`` and ``clouds``
are who sets it, and ``watch`` is what a training looks at. It saves and stops nothing
by itself. ``training`` imports it.
"""
