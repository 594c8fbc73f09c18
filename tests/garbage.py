"""The garbage of tests: `tests/conftest.py` freezes what lives at every test, and what is frozen is not collected."""

import gc
from types import SimpleNamespace

from astune.support import short_pauses


def keep_frozen() -> None:
    """Have runs of training leave frozen what is: each would thaw all that the tests have imported, and the next one in
    the same test would look at it again, which takes longer than most runs."""
    short_pauses.gc = SimpleNamespace(**(vars(gc) | {"unfreeze": lambda: None}))  # type: ignore[assignment]


def collect_all() -> None:
    """Collect what earlier tests left, too. A module whose library leaves connections open ends with it, as only there
    the warnings about them are ignored."""
    gc.unfreeze()
    gc.collect()
