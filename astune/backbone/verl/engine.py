"""verl's training workers and servers as the engine of a run.

To be imported once the variables of `environment` are set: verl reads them then.
"""

from __future__ import annotations

import contextlib
import io
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import ray
from omegaconf import DictConfig
from transformers import AutoConfig
from verl.checkpoint_engine import CheckpointEngineManager
from verl.single_controller.ray import RayClassWithInitArgs, RayWorkerGroup, ResourcePoolManager
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.rollout.llm_server import LLMServerManager

from astune.backbone.lora.settings import find_begun_adapter
from astune.backbone.losses.teacher import TEACHER, ApiTeacher, require_same_tokens
from astune.backbone.policies.compared import ANY_QUESTION, IN_FLOAT32, OTHERWISE
from astune.backbone.policies.requests import ServerTraits
from astune.backbone.ray_cluster.connect import join_ray
from astune.backbone.ray_cluster.episodes import in_actors
from astune.backbone.ray_cluster.nodes import ask_nodes, live_nodes, refuse
from astune.backbone.verl.demand import CPUS_BESIDES, CPUS_OF_A_GPU, Demand
from astune.backbone.verl.environment import environment
from astune.backbone.verl.memory import describe_memory
from astune.backbone.verl.processes import VerlProcesses
from astune.backbone.verl.servers.policy import ServersPolicy
from astune.backbone.verl.servers.publish import PublishedWeights
from astune.backbone.verl.trainer.group import GroupWorkers
from astune.backbone.verl.trainer.learner import VerlLearner
from astune.backbone.verl.trainer.limits import attention_in
from astune.backbone.verl.trainer.settings import as_it_runs, compose_settings, model_folder, settings_of
from astune.backbone.verl.trainer.value_model import value_architecture
from astune.backbone.verl.trainer.worker import AstuneWorker
from astune.config.chat_models import TeacherConfig
from astune.config.load import LoadedConfig
from astune.config.rules import needs_policy
from astune.config.rules.method import rules_of
from astune.config.schema import AstuneConfig
from astune.context_tracker.model_dir import load_chat_format, resolve_base_dir, resolve_model_dir
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import ConfigError
from astune.support.run_log import file_logger
from astune.support.visible import tell
from astune.training.engine import Engine
from astune.training.rollout_setup import NoPolicy

log = file_logger(__name__)

ADDRESS = "verl.ray_kwargs.ray_init.address"
POOL = "training"
KEPT = {"sglang": 1}
"""Tokens of the context that a server keeps for itself."""


def load_engine(loaded: LoadedConfig, config: AstuneConfig) -> Engine:
    """Start Ray or join it, then the workers and servers that the configuration asks for; `config` is what `loaded` has
    of ASTune's, as it runs. They end with `Engine.close`, or where one of them does not start."""
    find_begun_adapter(config.model)
    directory = resolve_base_dir(config.model.path)
    chat_format = load_chat_format(config.model, directory)
    loaded = as_it_runs(loaded, config)
    settings = compose_settings(loaded, settings_of(loaded))
    fit_servers(config, settings, chat_format)
    teacher = find_teacher(config, directory)
    if rules_of(config.algorithm).needs_critic:
        value_architecture(AutoConfig.from_pretrained(directory))  # or an error that says that there is none
    where = Demand.of(settings).table(config)
    for line in [*where, *describe_memory(config, settings, directory)]:
        tell(line)
        log.info("%s", line)
    with ExitStack() as stack:
        stack.enter_context(ray_session(config, settings))
        with VerlProcesses({}).failing_loudly():  # those that begin have no names yet
            engine = start(config, settings, directory, chat_format, teacher)
        return replace(engine, close=stack.pop_all().close)


def _not_honoured(ray_kwargs: DictConfig) -> Iterator[str]:
    """Keys that verl's own launcher acts on, and nothing here."""
    if ray_kwargs.timeline_json_file:
        yield "verl.ray_kwargs.timeline_json_file: ASTune writes no timeline of Ray's; take the key out"
    if any(value is not None for value in ray_kwargs.ray_init.runtime_env.values()):
        yield "verl.ray_kwargs.ray_init.runtime_env: Ray's processes get the environment of this one; take the key out"


def out_of_reach(config: AstuneConfig, nodes: int) -> Iterator[str]:
    """Files that workers on other nodes would look for in vain."""
    if config.rollout.workers and nodes > 1 and config.task_reader.env_service.own_token is not None:
        yield (
            "astune.task_reader.env_service.serve: the run serves it to this machine alone, and astune.rollout.workers "
            f"play on {nodes} nodes; start it where each reaches it (`astune env serve --host 0.0.0.0`) and set env_url"
        )


@contextmanager
def ray_session(config: AstuneConfig, settings: DictConfig) -> Iterator[None]:
    """Join the cluster that the settings name, or start one on this machine that ends with the run. Raises ConfigError
    for what can be found before the first process starts."""
    cpu = settings.trainer.device == "cpu"
    demand, given = Demand.of(settings), settings.ray_kwargs.ray_init
    refuse([*demand.problems(), *_not_honoured(settings.ray_kwargs)], "verl")
    gpus = demand.training_gpus + demand.server_gpus
    enough = max(os.cpu_count() or 1, gpus * CPUS_OF_A_GPU + CPUS_BESIDES)
    resources = {"num_cpus": given.num_cpus or enough}
    if cpu:
        resources["num_gpus"] = gpus
    with join_ray(given.address, f"astune_{uuid.uuid4().hex}", environment(cpu=cpu), ADDRESS, resources):
        nodes, model = live_nodes(), settings.actor_rollout_ref.model.path
        seen = ask_nodes(nodes, config, model, Path(config.runs_dir), attention_in(settings))
        refuse([*demand.missing(nodes), *out_of_reach(config, len(nodes)), *seen], "verl")
        yield


def find_teacher(config: AstuneConfig, directory: Path) -> ApiTeacher | None:
    """The one behind an API; of one in a folder it is only checked that it has the tokens of the model in
    `directory`."""
    teacher = config.algorithm.teacher
    if isinstance(teacher, str):
        require_same_tokens(resolve_model_dir(teacher, weights=False, key=TEACHER), directory)
    return ApiTeacher(teacher, config.algorithm, directory) if isinstance(teacher, TeacherConfig) else None


def fit_servers(config: AstuneConfig, settings: DictConfig, chat_format: ChatFormat) -> None:
    """Set what servers have to be able to hold: no more conversations than there ever are, and the longest of them.
    A run that asks nothing has no servers."""
    length = config.model.max_model_len or chat_format.context_length
    if length is None:
        raise ConfigError(
            f"astune.model.max_model_len: {config.model.path} does not say for how many tokens it was made; set it"
        )
    rollout = settings.actor_rollout_ref.rollout
    rollout.max_model_len = length + KEPT.get(rollout.name, 0)
    if not needs_policy(config):
        rollout.nnodes = 0
    rollout.max_num_seqs = min(rollout.max_num_seqs, -(-config.rollout.max_concurrent // Demand.of(settings).servers))


def start(
    config: AstuneConfig,
    settings: DictConfig,
    directory: Path,
    chat_format: ChatFormat,
    teacher: ApiTeacher | None,
) -> Engine:
    """Start all processes on the cluster that was joined: servers only where something is played."""
    group = start_workers(config, settings)
    processes = VerlProcesses({f"training worker {number}": worker for number, worker in enumerate(group.workers)})
    with processes.failing_loudly():
        group.init_model()
    if needs_policy(config):
        return with_servers(config, settings, directory, chat_format, teacher, group, processes)
    workers = GroupWorkers(group, directory, lambda: None, processes.failing_loudly)
    learner = VerlLearner(workers, lambda version: {}, config.algorithm, config.trainer)
    nothing_is_asked = NoPolicy(settings.actor_rollout_ref.rollout.max_model_len)
    return Engine(nothing_is_asked, learner, chat_format, lost=processes.wait_for_loss)


def with_servers(
    config: AstuneConfig,
    settings: DictConfig,
    directory: Path,
    chat_format: ChatFormat,
    teacher: ApiTeacher | None,
    group: RayWorkerGroup,
    trainers: VerlProcesses,
) -> Engine:
    """The engine of training workers and of servers, which are started."""
    rollout = settings.actor_rollout_ref.rollout
    context_length = rollout.max_model_len - KEPT.get(rollout.name, 0)
    with trainers.failing_loudly():
        servers = start_servers(settings, group)
    replicas = servers.get_replicas()
    engine_config = omega_conf_to_dataclass(rollout.checkpoint_engine)
    manager = CheckpointEngineManager(config=engine_config, actor_wg=group, replicas=replicas)
    processes = VerlProcesses(
        dict(trainers.actors)
        | {f"server {replica.replica_rank}": server for replica in replicas for server in replica.servers}
        | {"the balancer of the servers": servers.global_load_balancer}
    )
    weights = PublishedWeights(
        manager,
        chat_format.encode(chat_format.render(ANY_QUESTION)),
        context_length,
        IN_FLOAT32 if settings.trainer.device == "cpu" and config.model.dtype != "bfloat16" else OTHERWISE,
    )
    workers = GroupWorkers(group, directory, weights.make_room, processes.failing_loudly)

    def hand_over(version: int) -> Mapping[str, float]:
        with processes.failing_loudly():
            return weights.publish(version, learner.scores)

    learner = VerlLearner(workers, hand_over, config.algorithm, config.trainer, teacher)
    traits = ServerTraits(rollout.name, rollout.logprobs_mode)
    client = servers.get_client()
    policy = ServersPolicy(client, traits, context_length, chat_format.decode, weights.remember)
    elsewhere = ServersPolicy(client, traits, context_length, chat_format.decode)
    player = partial(in_actors, elsewhere, chat_format, weights.remember)
    apart = Demand.of(settings).server_nodes > 0
    return Engine(policy, learner, chat_format, beside=apart, lost=processes.wait_for_loss, player=player)


def start_workers(config: AstuneConfig, settings: DictConfig) -> RayWorkerGroup:
    """The training workers, without a model yet."""
    demand = Demand.of(settings)
    pools = ResourcePoolManager({POOL: [demand.gpus_per_node] * demand.nodes}, {})
    pools.create_resource_pool()
    worker = RayClassWithInitArgs(
        ray.remote(AstuneWorker),
        config=settings.actor_rollout_ref,
        role="actor_rollout" if needs_policy(config) and not demand.server_nodes else "actor",
        algorithm=config.algorithm,
        teacher=model_folder(config.algorithm.teacher) if isinstance(config.algorithm.teacher, str) else None,
        model=config.model,
        seed=config.seed,
        distillation_config=None,
    )
    return RayWorkerGroup(pools.resource_pool_dict[POOL], worker, device_name=settings.trainer.device)


def start_servers(settings: DictConfig, group: RayWorkerGroup) -> LLMServerManager:
    """The servers, on the GPUs of the training workers or on their own."""
    with contextlib.redirect_stdout(io.StringIO()):  # verl prints their addresses
        if Demand.of(settings).server_nodes:
            return LLMServerManager.create(config=settings)
        return LLMServerManager.create(config=settings, worker_group=group)
