"""What changed in the attributes of the user's own data objects, and putting it back.

``baseline`` remembers how they were when training began, ``tracker`` compares, and
``content`` says what is read of them and what that costs. ``data`` imports it.
"""
