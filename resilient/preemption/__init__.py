"""Requests to stop: signals, a file to touch, cloud notices.

``options`` holds the user's choices and ``requests`` the flag, which signals and
``clouds`` set; ``watch`` is what training asks. Nothing here saves or stops by itself.
``training`` imports it.
"""
