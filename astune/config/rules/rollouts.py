"""Values of `astune.synchronizer` and of parts of `astune.rollout` that contradict others."""

from __future__ import annotations

from collections.abc import Iterator

from astune.config.rollout import OURS, WorkspaceConfig
from astune.config.rules.method import rules_of
from astune.config.schema import AstuneConfig, SynchronizerConfig
from astune.errors import nearest


def synchronizer_contradictions(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    """The key to change and what is wrong with it, for every backbone whose loop is ASTune's, which cannot honour all
    values."""
    synchronizer = astune.synchronizer
    if not rules_of(astune.algorithm).plays:
        for name in synchronizer.find_changed():
            yield (
                f"astune.synchronizer.{name}",
                f"the method {astune.algorithm.method!r} plays no episodes that training could wait for; take the key "
                "out",
            )
        return
    for name in synchronizer.find_changed(("interval", "offset")):
        yield (
            f"astune.synchronizer.{name}",
            f"got {getattr(synchronizer, name)!r}, which only Trinity has; expected "
            f"{getattr(SynchronizerConfig(), name)}, or --backbone=trinity (how far rollouts may be ahead here: "
            "astune.synchronizer.max_staleness, with style 'async')",
        )
    if synchronizer.find_changed(["patience"]) and synchronizer.quorum == 1.0:
        yield (
            "astune.synchronizer.patience",
            "astune.synchronizer.quorum is 1, so that every episode is waited for; take the key out, or set a quorum, "
            "as 0.9",
        )
    if synchronizer.style == "async":
        yield from _async(astune)
    elif synchronizer.style != "fixed":
        yield (
            "astune.synchronizer.style",
            f"got {synchronizer.style!r}, which only Trinity has; expected 'fixed' or 'async', or --backbone=trinity",
        )
    elif synchronizer.max_staleness is not None:
        yield (
            "astune.synchronizer.max_staleness",
            f"got {synchronizer.max_staleness}, but with style 'fixed' rollouts wait for training, so that nothing "
            "becomes stale; take the key out, or set astune.synchronizer.style to 'async'",
        )


def _async(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    algorithm, most = astune.algorithm, astune.synchronizer.max_staleness
    if most is None:
        yield (
            "astune.synchronizer.max_staleness",
            "not set; with style 'async' it says how many steps rollouts may be ahead of training; expected a number, "
            "1 to begin with",
        )
    weighs_tokens = rules_of(algorithm).loss != "likelihood"
    if algorithm.loss == "reinforce" and algorithm.importance == "none" and weighs_tokens:
        yield (
            "astune.algorithm.importance",
            "'none' takes tokens of older weights for tokens of the weights in training, and with "
            "astune.synchronizer.style 'async' they are older; expected 'truncate' or 'mask', or another loss",
        )
    if astune.model.lora.base != "dtype" and astune.traits.own_engine and astune.rollout.engine == "torch":
        yield (
            "astune.model.lora.base",
            f"got {astune.model.lora.base!r}, and with astune.synchronizer.style 'async' two threads would read a base "
            "in 4 bits, whose kernels may change how it is laid out; expected 'dtype'",
        )


def engine_contradictions(astune: AstuneConfig, *, plays: bool) -> Iterator[tuple[str, str]]:
    """The key to change and what is wrong with it; `plays` says that the run asks a policy at all."""
    if not astune.traits.own_engine:
        return  # the backbone refuses each of these keys, and says why
    if astune.rollout.engine == "torch":
        for name in astune.rollout.vllm.find_changed():
            yield (
                f"astune.rollout.vllm.{name}",
                "there is no vLLM without astune.rollout.engine: vllm; set it, or take the key out",
            )
        return
    if astune.rollout.vllm.base_url is not None:
        for name in astune.rollout.vllm.find_changed():
            if name != "base_url":
                yield (
                    f"astune.rollout.vllm.{name}",
                    "the server at astune.rollout.vllm.base_url runs already, as it was started; take one of them out",
                )
    yield from _adapters(astune)
    yield from _sampling(astune)
    if not plays:
        yield (
            "astune.rollout.engine",
            f"the method {astune.algorithm.method!r} plays no episodes that vLLM could answer; take the key out",
        )


def _adapters(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    lora = astune.model.lora
    if lora.dora:
        yield "astune.model.lora.dora", "vLLM does not serve DoRA; expected false, or astune.rollout.engine: torch"
    if lora.base != "dtype":
        yield (
            "astune.model.lora.base",
            f"vLLM would serve the weights below the adapters as they are in the file, not in {lora.base!r}; expected "
            "'dtype', or astune.rollout.engine: torch",
        )
    if lora.rank is not None and lora.rank > 512:
        yield "astune.model.lora.rank", f"got {lora.rank}; vLLM serves adapters of rank 512 at most"


def _sampling(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    rollout = astune.rollout
    if (rollout.top_p < 1.0 or rollout.top_k > 0) and rollout.temperature not in (0.0, 1.0):
        yield (
            "astune.rollout.temperature",
            f"got {rollout.temperature:g} together with top_p or top_k: vLLM then tells no log-probabilities of the "
            "distribution before they cut it, and nothing could be trained; expected 1, or top_p 1 and top_k 0, or "
            "astune.rollout.engine: torch",
        )


def context_contradictions(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    """Keys that the strategy does not read, a model that is not there, and cuts that would come too late."""
    context, models, most = astune.rollout.context, astune.rollout.auxiliary_models, astune.model.max_model_len
    unread = {"none": ("at", "keep", "model", "prompt"), "discard": ("model", "prompt"), "restart": ("keep",)}
    for name in context.find_changed(unread.get(context.strategy, ())):
        yield (
            f"astune.rollout.context.{name}",
            f"astune.rollout.context.strategy {context.strategy!r} does not read it; take the key out, or choose "
            "another strategy",
        )
    if context.model is not None and context.model not in models:
        yield (
            "astune.rollout.context.model",
            f"got {context.model!r}, which is none of astune.rollout.auxiliary_models.{nearest(context.model, models)} "
            f"There are: {', '.join(models) or 'none'}",
        )
    if context.strategy != "none" and most is not None and context.at >= most:
        yield (
            "astune.rollout.context.at",
            f"got {context.at:g} tokens, and astune.model.max_model_len is {most}: the context would be full before "
            "anything is cut; expected fewer, or a share of it, as 0.75",
        )


def tool_contradictions(astune: AstuneConfig) -> Iterator[tuple[str, str]]:
    """Effects of failed calls that the method of training does not have."""
    algorithm, no_credit = astune.algorithm, sorted(astune.tools.on_failure.causes("no_credit"))
    if not no_credit or (algorithm.method in ("rl", "rft") and algorithm.advantage != "gae"):
        return
    what = "advantage 'gae'" if algorithm.advantage == "gae" else f"method {algorithm.method!r}"
    yield (
        f"astune.tools.on_failure.{no_credit[0]}",
        f"got 'no_credit', which takes advantages above 0 away from turns, and the {what} gives turns none of its own; "
        "expected 'nothing' or 'end'",
    )


def workspace_contradictions(workspace: WorkspaceConfig) -> Iterator[tuple[str, str]]:
    """Keys of the workspace that its type does not know."""
    key = "astune.rollout.workspace"
    changed = [name for name in workspace.find_changed() if name != "type"]
    if workspace.type is None:
        for name in changed:
            yield f"{key}.{name}", f"there is no workspace: set {key}.type, as {OURS}, or take the key out"
    elif workspace.type != OURS:
        for name in {"limits", "artifacts_mb", "hosts"}.intersection(changed):
            yield f"{key}.{name}", f"{workspace.type} knows no {name}: set {key}.type to {OURS}, or take the key out"
    if workspace.isolation != "episode" and workspace.artifacts_mb:
        yield (
            f"{key}.artifacts_mb",
            f"a workspace of a {workspace.isolation} has files of several episodes; set {key}.isolation to 'episode'",
        )
