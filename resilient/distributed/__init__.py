"""Connects several processes that train one model, and makes them agree.

``rendezvous`` connects them, ``group`` exchanges messages over TCP, and ``strategies``
knows how each library does distributed training. It refuses setups that would train
several models, and knows neither data nor callbacks. ``data``, ``saving`` and
``training`` import it.
"""
