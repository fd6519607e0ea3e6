"""A loss that is no number any more: how it is noticed, and how a run goes back."""
