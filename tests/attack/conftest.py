"""The short form of `make attack`: what it is made of, for a few seconds."""

import pytest

pytest.importorskip("torch")
