"""For all tests: no test fails because the machine is busy."""

from hypothesis import settings

settings.register_profile("astune", deadline=None)
settings.load_profile("astune")
