"""Keras's fit, with control between any two of its batches.

It patches two names in Keras's trainer while a fit runs, and refuses whatever would
need a second loop beside Keras's. ``training/loop`` does not import it.
"""
