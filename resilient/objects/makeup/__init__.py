"""What a model trains with and no variable holds: optimizer, loss, metrics, settings.

``look`` reads it, ``values`` tells it so that two of them compare, ``makeup`` knows
what training changed. It sets nothing. ``training`` and ``objects/adapters`` import it.
"""
