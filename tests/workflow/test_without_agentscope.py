from importlib import metadata

import pytest

from astune.errors import MissingDependency
from astune.workflow import agentscope


async def test_without_agentscope_the_error_says_what_to_install(make_tuner, monkeypatch):
    def not_installed(name):
        if name == "agentscope":
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    installed = metadata.version
    monkeypatch.setattr(metadata, "version", not_installed)
    agentscope.major_version.cache_clear()
    tuner, _, _ = make_tuner([])
    with pytest.raises(MissingDependency, match=r'pip install "astune\[agentscope2\]"'):
        tuner.model()
    with pytest.raises(MissingDependency, match="openai_client"):
        agentscope.training_defaults()
    assert tuner.openai_client().max_retries == 0
