"""A loss that is not finite: how it is detected, and how a run goes back.

``options`` is what the user says of it, ``loss_watch`` looks at the losses, and
``rollback`` keeps which batches a run leaves out.
"""
