"""The training setup of a model outside variables: optimizer, loss, metrics, settings.

``changes`` reads it and knows what training changed, and ``describe`` describes it for
comparison. It sets nothing. ``training`` and ``objects/adapters`` import it.
"""
