"""A loss that is no number any more: how it is noticed, and how a run goes back.

``loss_watch`` looks at the losses, ``rollback`` keeps which batches a run leaves out.
"""
