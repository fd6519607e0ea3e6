"""What a run did, for people to look at: tables, and charts for a page or a paper.

It reads events, the heartbeat and manifests, and changes nothing. Facts need no other
library; charts need those of the extra ``report``.
"""
