"""What changed in the user's own data objects, told and put back."""
