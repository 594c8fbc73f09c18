"""`astune.search_prompts`: what `astune prompt` does, as a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

from astune.api.settings import configure
from astune.backbone.playing import playing_engine
from astune.config.load import LoadedConfig
from astune.config.prompts import PromptsConfig
from astune.prompts.result import PromptSearch
from astune.prompts.search import search_prompts as search
from astune.training.candidates import candidate_of
from astune.training.engine import LoadEngine


def search_prompts(
    workflow: object = None,
    *,
    tasks: object = None,
    judge: object = None,
    model: object = None,
    prompts: Mapping[str, str] | None = None,
    reflector: Callable[..., Any] | str | None = None,
    validation_tasks: object = None,
    conf: str | PathLike[str] | None = None,
    checkpoint: str = "none",
    engine: LoadEngine | str | None = None,
    **keys: Any,
) -> PromptSearch:
    """Search for better texts of an agent, and test the best on tasks that the search never saw.

        found = astune.search_prompts(solve, tasks="train.jsonl", judge=exact, model="Qwen/Qwen3-0.6B", reflector=write,
                                      prompts={"system_prompt": "You are a cashier."}, rounds=20)
        found.prompts["system_prompt"], found.gained, found.reward.difference

    `prompts` are the first texts, where the workflow does not have them itself. `reflector` is a function that makes a
    new text of a `ReflectionRequest`, in the place of the models of `reflection={"models": [...]}`. `keys` are those of
    `astune.prompts`, as `max_cost=5`, or any others, nested or dotted; the rest is as in `astune.tune`. `checkpoint`
    names what plays, as for `astune eval`: a checkpoint, a model, or an API. With `resume=True` it goes on.

    Raises what the command line would show. Ctrl-C leaves what was done, and `resume=True` goes on.
    """
    chosen = {f"prompts.{name}" if name in PromptsConfig.model_fields else name: value for name, value in keys.items()}
    chosen |= {} if prompts is None else {"prompts.texts": dict(prompts)}
    chosen |= {} if reflector is None else {"prompts.reflector": reflector}
    with configure(workflow, tasks, judge, model, validation_tasks=validation_tasks, conf=conf, keys=chosen) as loaded:
        return search_loaded(loaded, checkpoint, engine=engine)


def search_loaded(
    loaded: LoadedConfig, checkpoint: str = "none", backbone: str | None = None, engine: LoadEngine | str | None = None
) -> PromptSearch:
    """Search as a configuration says, with the weights that `checkpoint` names."""
    model = candidate_of(checkpoint, loaded.config.astune)
    if engine is None or isinstance(engine, str):
        load_engine, as_model = playing_engine(loaded, backbone, engine)
        return search(loaded, load_engine, model, as_model=as_model)
    return search(loaded, engine, model)
