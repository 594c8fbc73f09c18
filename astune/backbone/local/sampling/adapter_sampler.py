"""One model's share of a sampler, which may serve several adapters: what rollouts ask and its learner publishes to. All
such shares as one policy. And adapters that are earlier versions of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from astune.backbone.local.model.adapters import Adapters
from astune.backbone.local.sampling.sampler import Sampler
from astune.errors import PolicyError
from astune.types import Generation, Sampling


class AdapterSampler:
    """A `Policy` that answers with one adapter of `sampler`, in the same batches as the others.

        buyer = AdapterSampler(sampler, "buyer")
        learner = LocalLearner(loaded.of("buyer"), buyer, algorithm, trainer)

    Publishing empties only this adapter's part of the cache, and those of the `frozen` ones, of whatever sampler, which
    nobody publishes, so answers of others may be under way meanwhile.
    """

    def __init__(self, sampler: Sampler, adapter: str, frozen: Sequence[AdapterSampler] = ()) -> None:
        self._sampler, self._adapter, self._frozen = sampler, adapter, frozen

    @property
    def context_length(self) -> int:
        return self._sampler.context_length

    @property
    def policy_version(self) -> int:
        return self._sampler.versions[self._adapter]

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self._sampler.versions[self._adapter] = version

    def forget(self) -> None:
        self._sampler.forget(self._adapter)
        for each in self._frozen:
            each.forget()

    def publish(self) -> int:
        self.forget()
        return self._sampler.publish(self._adapter)

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        return await self._sampler.generate(prompt_ids, sampling, self._adapter)


class NamedSamplers:
    """A `Policy` that has several models: the one answers that `Sampling.model` names. `context_length` is that of the
    longest."""

    def __init__(self, parts: Mapping[str, AdapterSampler]) -> None:
        self.parts = parts
        self.context_length = max(part.context_length for part in parts.values())

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling) -> Generation:
        if sampling.model not in self.parts:
            raise PolicyError(f"there is no model {sampling.model!r}; there are: {', '.join(self.parts)}")
        return await self.parts[sampling.model].generate(prompt_ids, sampling)


class AdapterPlaces:
    """Places for earlier versions of the adapter `of`: adapters of its shape, which answer in the same batches.
    `adapters` are those that the sampler computes with."""

    def __init__(self, adapters: Adapters, sampler: Sampler, of: str, names: Sequence[str]) -> None:
        self.names = names
        self._adapters, self._sampler, self._of = adapters, sampler, of

    def keep(self, name: str) -> None:
        self._adapters.copy(self._of, name)
        self._begin(name, self._sampler.versions[self._of])

    def save(self, name: str, folder: Path) -> None:
        self._adapters.save(folder, name)

    def load(self, name: str, folder: Path, version: int) -> None:
        self._adapters.load(folder, name)
        self._begin(name, version)

    def _begin(self, name: str, version: int) -> None:
        self._sampler.forget(name)
        self._sampler.versions[name] = version
