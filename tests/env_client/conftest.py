import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for misbehaving.py

from misbehaving import MisbehavingService

from astune.clients import env_service


@pytest.fixture(scope="session")
def service():
    with MisbehavingService() as service:
        yield service


@pytest.fixture
def short_pauses(monkeypatch):
    monkeypatch.setattr(env_service, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(env_service, "LONGEST_PAUSE", 0.05)
