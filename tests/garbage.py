"""The garbage of tests: `tests/conftest.py` freezes what lives at every test, and what is frozen is not collected."""

import gc


def collect_all() -> None:
    """Collect what earlier tests left, too. A module whose library leaves connections open ends with it, as only there
    the warnings about them are ignored."""
    gc.unfreeze()
    gc.collect()
