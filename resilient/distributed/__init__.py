"""Several processes that train one model: how they connect, agree, and divide the work.

``rendezvous`` connects them, ``group`` lets them talk by TCP, ``strategies`` says how
their library trains together. What would train several models is refused. It knows
neither data nor callbacks. ``data``, ``saving`` and ``training`` import it.
"""
