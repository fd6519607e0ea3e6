"""Reports on what a run did: tables, and charts for a page or a paper.

The package reads events, the heartbeat and manifests, and changes nothing. Facts need
no further libraries; charts need those of the extra ``report``.
"""
