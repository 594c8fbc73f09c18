"""Do the chat APIs of the configuration answer, and with what training needs?"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Mapping
from typing import TypeVar

from astune.clients.chat import ChatClient, ChatReply
from astune.clients.scoring import ScoringClient
from astune.config.chat_models import ApiConfig, AuxiliaryModelConfig, ChatModelConfig, TeacherConfig
from astune.doctor.checked_config import CheckedConfig
from astune.doctor.findings import Finding, fail, ok, skip, warn
from astune.errors import ModelError, RolloutError, nearest

C = TypeVar("C", bound=ApiConfig)

TEACHER = "astune.algorithm.teacher"
SECONDS = 15.0
HELLO = {"messages": [{"role": "user", "content": "Say hello."}]}


def check_endpoints(checked: CheckedConfig) -> Iterator[Finding]:
    models = _models(checked)
    if not models:
        yield ok("no chat APIs are configured")
    for key, model in models.items():
        if model.api_key_env is not None and not os.environ.get(model.api_key_env):
            yield fail(
                f"the environment variable {model.api_key_env}, which holds its API key, is not set",
                where=_where(checked, key),
                fix=f"export {model.api_key_env}=...",
            )
        elif checked.offline:
            yield skip(f"{key} ({model.base_url}): this is --offline")
        elif isinstance(model, TeacherConfig):
            yield _teacher(checked, model)
        else:
            yield from asyncio.run(_ask(key, model, _where(checked, key)))


def _models(checked: CheckedConfig) -> Mapping[str, ChatModelConfig | TeacherConfig]:
    config = checked.config
    teacher = config.algorithm.teacher
    return {
        **({TEACHER: teacher} if isinstance(teacher, TeacherConfig) else {}),
        **{f"astune.rollout.auxiliary_models.{name}": m for name, m in config.rollout.auxiliary_models.items()},
        **{f"astune.debug.endpoints.{at}": m for at, m in enumerate(config.debug.endpoints)},
        **{f"astune.task_judge.llm.models.{at}": m for at, m in enumerate(config.task_judge.llm.models)},
        **{f"astune.task_reader.augment.models.{at}": m for at, m in enumerate(config.task_reader.augment.models)},
    }


def _where(checked: CheckedConfig, key: str) -> str:
    if key == TEACHER:
        return checked.where(key)
    section = key.rpartition(".")[0]
    return checked.where(section).replace(section, key)


def _teacher(checked: CheckedConfig, config: TeacherConfig) -> Finding:
    """Check that it weighs tokens, and that they are the model's."""
    client, tokens = ScoringClient("teacher", _quick(config), key=TEACHER), checked.chat_format
    try:
        asyncio.run(client.check_vocabulary(tokens.encode, tokens.decode))
    except (ModelError, RolloutError) as error:
        fix = "serve a model of the same family with vLLM, or correct base_url, model or key"
        return fail(str(error).removeprefix(f"{TEACHER}: "), where=checked.where(TEACHER), fix=fix)
    return ok(f"{TEACHER}: {config.model} at {config.base_url} weighs tokens")


def _quick(config: C) -> C:
    return config.model_copy(update={"timeout": min(config.timeout, SECONDS), "max_retries": 0})


async def _ask(key: str, model: ChatModelConfig, where: str) -> list[Finding]:
    client = ChatClient(key.rpartition(".")[2], _quick(model), key=key)
    known = await _list_models(client)
    trainable = isinstance(model, AuxiliaryModelConfig) and model.trainable
    wanted = {"logprobs": True, "return_token_ids": True} if trainable else {}
    try:
        reply = await client.complete({**HELLO, model.limit_field: 16, **wanted})
    except RolloutError as error:
        hint = f"it has {', '.join(known[:8])}.{nearest(model.model, known)}" if known else ""
        said = str(error).removeprefix(f"{key}: ")
        fix = hint if known and model.model not in known else "start the server, or correct base_url, model or key"
        return [fail(said, where=where, fix=fix)]
    found: list[Finding] = []
    if known and model.model not in known:
        found.append(
            warn(
                f"{model.base_url} answers, but does not list {model.model!r}",
                where=where,
                fix=f"it lists {', '.join(known[:8])}.{nearest(model.model, known)}",
            )
        )
    if trainable:
        found += _trainable(reply, where)
    return found or [ok(f"{key}: {model.model} at {model.base_url} answers")]


def _trainable(reply: ChatReply, where: str) -> Iterator[Finding]:
    lacks = [
        name
        for name, value in (("token ids", reply.output_ids), ("log-probabilities", reply.logprobs))
        if value is None
    ]
    if reply.prompt_ids is None and "token ids" not in lacks:
        lacks.append("the token ids of the prompt")
    if lacks:
        yield fail(
            f"it is to be trained, and gives no {' and no '.join(lacks)}",
            where=where,
            fix="serve it with vLLM 0.10.2 or newer (return_token_ids), or take trainable: true away",
        )


async def _list_models(client: ChatClient) -> list[str]:
    """The models that an API lists, none if it does not say."""
    try:
        return await client.models(SECONDS) or []
    except RolloutError:
        return []
