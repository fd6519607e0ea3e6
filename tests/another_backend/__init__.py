"""Runs that go on on another backend: what is exact, and what is refused."""
