"""Several processes that train one model: how they connect, agree, and divide the work.

``rendezvous`` connects them, ``group`` exchanges messages by TCP, and ``strategies``
says how each library trains one model together. Refuses set-ups that would train
several models. Knows neither data nor callbacks. ``data``, ``saving`` and ``training``
import it.
"""
