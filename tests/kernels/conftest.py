import pytest

from tests.interpreter import DEVICE


@pytest.fixture(scope="session")
def device() -> str:
    return DEVICE
