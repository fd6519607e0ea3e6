"""The training setup of a model outside variables: optimizer, loss, metrics, settings.

``look`` reads it, ``describe`` describes it for comparison, and ``changes`` knows what
training changed. It sets nothing. ``training`` and ``objects/adapters`` import it.
"""
