import pytest

from astune.clients import env_service
from tests.env_client.misbehaving import MisbehavingService


@pytest.fixture(scope="session")
def service():
    with MisbehavingService() as service:
        yield service


@pytest.fixture
def short_pauses(monkeypatch):
    monkeypatch.setattr(env_service, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(env_service, "LONGEST_PAUSE", 0.05)
