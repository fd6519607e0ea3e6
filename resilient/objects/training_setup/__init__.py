"""What a model trains with outside of variables: optimizer, loss, metrics, settings.

``look`` reads it, ``describe`` describes it so that two of them compare, ``changes``
knows what training changed. It sets nothing. ``training`` and ``objects/adapters``
import it.
"""
