"""Keys of verl's that would do nothing here, or something other than what they say: refused, each with the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from astune.backbone.base import covers
from astune.backbone.verl.demand import Demand

PARTS = "actor_rollout_ref"
UNREAD: Mapping[str, str] = {
    "custom_reward_function": "astune.task_judge",
    "distillation": "astune.algorithm.teacher",
    "global_profiler": "",
    "model_engine": "",
    "reward_model": "astune.task_judge",
    "sandbox_fusion": "astune.task_judge",
    "skip": "",
    "transfer_queue": "",
    "trainer.balance_batch": "",
    "trainer.checkpoint_callback_class": "",
    "trainer.critic_warmup": "astune.algorithm.critic.warmup_updates",
    "trainer.default_hdfs_dir": "astune.runs_dir",
    "trainer.default_local_dir": "astune.runs_dir",
    "trainer.del_local_ckpt_after_load": "",
    "trainer.esi_redundant_time": "",
    "trainer.experiment_name": "astune.experiment_name",
    "trainer.log_val_generations": "",
    "trainer.logger": "astune.monitor",
    "trainer.max_actor_ckpt_to_keep": "astune.trainer.keep_checkpoints",
    "trainer.max_critic_ckpt_to_keep": "astune.trainer.keep_checkpoints",
    "trainer.project_name": "astune.project_name",
    "trainer.resume_from_path": "astune.resume",
    "trainer.resume_mode": "astune.resume",
    "trainer.rollout_data_dir": "",
    "trainer.use_v1": "",
    "trainer.v1": "",
    "trainer.val_before_train": "astune.evaluation.before",
    "trainer.val_only": "",
    "trainer.validation_data_dir": "",
    f"{PARTS}.actor.checkpoint": "astune.trainer.save_every",
    f"{PARTS}.actor.data_loader_seed": "astune.seed",
    f"{PARTS}.actor.grad_clip": "astune.trainer.max_grad_norm",
    f"{PARTS}.actor.optim.lr_scheduler_type": "astune.trainer.lr_schedule",
    f"{PARTS}.actor.optim.lr_warmup_steps": "astune.trainer.warmup_steps",
    f"{PARTS}.actor.optim.lr_warmup_steps_ratio": "astune.trainer.warmup_steps",
    f"{PARTS}.actor.optim.min_lr_ratio": "astune.trainer.lr_schedule",
    f"{PARTS}.actor.optim.num_cycles": "astune.trainer.lr_schedule",
    f"{PARTS}.actor.optim.total_training_steps": "astune.trainer.total_steps",
    f"{PARTS}.actor.optim.warmup_style": "astune.trainer.lr_schedule",
    f"{PARTS}.actor.ppo_epochs": "astune.trainer.updates_per_step",
    f"{PARTS}.actor.ppo_micro_batch_size": "astune.trainer.micro_batch_tokens",
    f"{PARTS}.actor.ppo_micro_batch_size_per_gpu": "astune.trainer.micro_batch_tokens",
    f"{PARTS}.actor.ppo_mini_batch_size": "astune.trainer.updates_per_step",
    f"{PARTS}.actor.profiler": "",
    f"{PARTS}.actor.shuffle": "",
    f"{PARTS}.actor.use_dynamic_bsz": "astune.trainer.micro_batch_tokens",
    f"{PARTS}.ref.log_prob_max_token_len_per_gpu": "astune.trainer.micro_batch_tokens",
    f"{PARTS}.ref.log_prob_use_dynamic_bsz": "astune.trainer.micro_batch_tokens",
    f"{PARTS}.rollout.agent": "astune.rollout.agentscope_learn_protocol",
    f"{PARTS}.rollout.do_sample": "astune.rollout.temperature",
    f"{PARTS}.rollout.log_prob_max_token_len_per_gpu": "astune.trainer.micro_batch_tokens",
    f"{PARTS}.rollout.log_prob_use_dynamic_bsz": "astune.trainer.micro_batch_tokens",
    f"{PARTS}.rollout.multi_turn": "astune.rollout.max_turns",
    f"{PARTS}.rollout.over_sample_rate": "astune.algorithm.dynamic_sampling",
    f"{PARTS}.rollout.prompt_length": "astune.model.max_model_len",
    f"{PARTS}.rollout.seed": "astune.seed",
    f"{PARTS}.rollout.val_kwargs": "astune.evaluation.decoding",
}
"""Sections and keys that only verl's own trainer reads, each with the key of ours that says it, if one does."""
ATTENTION = f"{PARTS}.model.override_config.attn_implementation"
SEQUENCE = "ulysses_sequence_parallel_size"
STRATEGIES = (f"{PARTS}.actor.strategy", f"{PARTS}.ref.strategy")
OFFLOADS = ("param_offload", "optimizer_offload", "offload_policy")

GPUS_OF_THEIR_OWN = (
    f"verl.{PARTS}.rollout.nnodes and n_gpus_per_node, which give servers GPUs of their own, with "
    f"verl.{PARTS}.rollout.checkpoint_engine.backend, by which weights travel to them"
)


def attention_in(tree: Mapping[str, Any]) -> str:
    """transformers' name of the attention in training workers."""
    return str(tree[PARTS]["model"]["override_config"]["attn_implementation"])


def way_in(tree: Mapping[str, Any]) -> str:
    """verl's name of how weights travel to servers on GPUs of their own."""
    return str(tree[PARTS]["rollout"].get("checkpoint_engine", {}).get("backend", "naive"))


def unread(users: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Keys of the user's section that nothing here reads, each with what to do."""
    for key in users:
        for name, ours in UNREAD.items():
            if covers([name], key):
                yield key, f"nothing reads it here; {f'set {ours}' if ours else 'take the key out'}"


def beyond(users: Mapping[str, Any], tree: Mapping[str, Any], *, cpu: bool) -> Iterator[tuple[str, str]]:
    """Values of the user's section that ASTune's workers cannot do, each with the reason. `tree` is what is set of
    verl's configuration."""
    for key in STRATEGIES:
        if users.get(key, "fsdp2") != "fsdp2":
            yield (
                key,
                f"got {users[key]!r}; expected 'fsdp2': shards that travel to servers and into checkpoints are FSDP2's "
                "here, and no other engine of verl's is built in",
            )
    attention = attention_in(tree)
    if cpu and ATTENTION in users and attention.startswith("flash"):
        yield ATTENTION, f"got {attention!r}, whose kernels a CPU has not; expected 'sdpa', or no such key"
    shared = {key: size for key, size in users.items() if key.rpartition(".")[2] == SEQUENCE and size != 1}
    for key, size in shared.items():
        if cpu:
            yield key, "ranks share a row by the kernels of flash attention, which a CPU has not; take the key out"
        elif (gpus := Demand.of(tree).training_gpus) % size:
            yield key, f"got {size}, which {gpus} GPUs do not come out even with; expected a divisor"
    if shared and not cpu and not attention.startswith("flash"):
        yield (
            ATTENTION if ATTENTION in users else next(iter(shared)),
            f"the attention is {attention!r}, by which each rank would see its own part of a row alone; expected "
            f"'flash_attention_2' (astune.model.attention) with {', '.join(shared)}",
        )
    for key, value in users.items() if cpu else ():
        if key.rpartition(".")[2] in OFFLOADS and value:
            yield key, "a CPU has no other memory to keep it in; take the key out"


def not_apart(tree: Mapping[str, Any], *, cpu: bool) -> Iterator[tuple[str, str]]:
    """Servers on GPUs of their own to which no weights would travel. By itself verl hands them to servers on the GPUs
    of the training workers, and those on their own would never get any."""
    if Demand.of(tree).server_nodes and way_in(tree) == "naive":
        expected = (
            "'astune_file', and checkpoint_engine.custom_backend_module: astune.backbone.verl.servers.file_weights"
            if cpu
            else "'nccl', or another that verl has"
        )
        yield (
            f"{PARTS}.rollout.nnodes",
            "no weights would reach servers on GPUs of their own, as checkpoint_engine.backend beside it is 'naive'; "
            f"expected {expected}",
        )
