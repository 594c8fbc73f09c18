"""The short form of `make attack`: what it is made of, for a few seconds."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parent))  # for the modules beside
