"""Say why a name in `astune.model.lora.targets` gets no adapter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from astune.errors import nearest

Other = Literal["head", "embedding"] | str
"""The kind of a part that is no linear layer: the head, the embedding, or the name of its type."""


def is_called(name: str, target: str) -> bool:
    """True for a layer with that full name, or with that end of it."""
    return name == target or name.endswith(f".{target}")


def ends_of(layers: Iterable[str]) -> list[str]:
    """The last parts of the names of layers."""
    return sorted({name.rpartition(".")[2] for name in layers})


def why_refused(target: str, layers: Iterable[str], others: Mapping[str, Other], *, tied: bool) -> str | None:
    """Say what is wrong with `target`; None if one of `layers`, which can have an adapter, has that name. `others` are
    the other parts of the model, by name; `tied` says that head and embedding share their weight."""
    layers = list(layers)
    if any(is_called(name, target) for name in layers):
        return None
    inside = ends_of(name for name in layers if f".{target}." in f".{name}")
    if inside:
        return f"{target!r} is a part of the model with several layers: name those, {', '.join(inside)}"
    kinds = [kind for name, kind in others.items() if is_called(name, target)]
    if not kinds:
        return f"no linear layer of the model is called {target!r}.{nearest(target, ends_of(layers))}"
    if kinds[0] == "head":
        shared = ", and its weight is that of the embedding as well" if tied else ""
        return f"{target!r} is the model's head, which stays as it is{shared}: adapters are for the layers below it"
    if kinds[0] == "embedding":
        shared = ", and its weight is that of the head as well" if tied else ""
        return f"{target!r} is the model's embedding and no linear layer{shared}: it gets no adapter"
    return f"{target!r} is no linear layer of the model but {kinds[0]}: it gets no adapter"
