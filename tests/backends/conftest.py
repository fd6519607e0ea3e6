"""The adapter under test."""

import pytest

from resilient.backends import Backend, get_backend


@pytest.fixture(scope="session")
def adapter(backend: str) -> Backend:
    """The adapter of the backend that KERAS_BACKEND names."""
    return get_backend(backend)
