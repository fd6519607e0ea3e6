"""A loss that is not finite: how it is detected, and how a run goes back.

``loss_watch`` looks at the losses, ``rollback`` keeps which batches a run leaves out.
"""
