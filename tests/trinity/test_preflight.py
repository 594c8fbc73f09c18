"""Everything here would otherwise be found an hour into a run, or never."""

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="make test-trinity installs it")
pytest.importorskip("trinity", reason="make test-trinity installs it")

import ray
from trinity.common.config import Config as TrinityConfig

import astune
from astune.backbone.ray_cluster import connect as ray_connect
from astune.backbone.ray_cluster import nodes as ray_nodes
from astune.backbone.ray_cluster.connect import check_address, connect
from astune.backbone.ray_cluster.node_check import NodeQuestion, find_problems
from astune.backbone.trinity.driver import preflight
from astune.backbone.trinity.driver.preflight import ADDRESS, check_before, check_cluster, check_gpus
from astune.config.schema import AstuneConfig
from astune.errors import ConfigError
from astune.support.resources import tiny_model_dir

look_at_cluster = partial(check_cluster, attention="sdpa")
WORKFLOW = "async def play(task, tuner):\n    return 1.0\n"


@pytest.fixture
def config(tmp_path: Path) -> AstuneConfig:
    """A run of 8 tasks a step, 4 attempts each, on a workflow in a file."""
    agent = tmp_path / "agent.py"
    agent.write_text(WORKFLOW)
    return AstuneConfig.model_validate(
        {"rollout": {"agentscope_learn_protocol": f"{agent}:play", "num_repeat": 4}, "trainer": {"tasks_per_step": 8}}
    )


def trinity_for(tmp_path: Path, *, tinker: bool = True, **cluster: Any) -> TrinityConfig:
    """Trinity's configuration for `config`, as converting makes it."""
    made = TrinityConfig()
    made.checkpoint_root_dir, made.project, made.name = str(tmp_path), "project", "run"
    made.buffer.batch_size, made.buffer.train_batch_size, made.algorithm.repeat_times = 8, 32, 4
    made.model.model_path = str(tiny_model_dir())
    made.model.tinker.enable = tinker
    made.cluster.node_num = cluster.pop("node_num", 0)
    made.cluster.gpu_per_node = cluster.pop("gpu_per_node", 0)
    for name, value in cluster.items():
        setattr(made.explorer.rollout_model, name, value)
    return made


def refusal(check: Callable[..., None], *arguments: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check(*arguments)
    return str(caught.value)


def test_a_sound_configuration_passes(config: AstuneConfig, tmp_path: Path) -> None:
    check_before(config, trinity_for(tmp_path))
    check_before(config, trinity_for(tmp_path, tinker=False, node_num=1, gpu_per_node=4, engine_num=2))


@pytest.mark.parametrize("train_batch_size", [33, 4096, 16])
def test_a_batch_size_that_the_episodes_of_a_step_never_fill_is_refused(
    config: AstuneConfig, tmp_path: Path, train_batch_size: int
) -> None:
    trinity = trinity_for(tmp_path)
    trinity.buffer.train_batch_size = train_batch_size
    message = refusal(check_before, config, trinity)
    assert f"trinity.buffer.train_batch_size: {train_batch_size}, but a batch brings 32 episodes" in message
    assert "astune.trainer.tasks_per_step" in message


def test_all_that_is_wrong_is_told_at_once(config: AstuneConfig, tmp_path: Path) -> None:
    trinity = trinity_for(tmp_path, tinker=False, node_num=2, gpu_per_node=4, engine_num=4, tensor_parallel_size=2)
    trinity.mode = "serve"
    trinity.buffer.batch_size = 9
    trinity.explorer.max_repeat_times_per_runner = 1
    trinity.explorer.runner_per_model = 0
    message = refusal(check_before, config, trinity)
    for key in (
        "trinity.mode: got 'serve'",
        "trinity.buffer.batch_size: 9",
        "trinity.buffer.train_batch_size: 32, but a batch brings 36 episodes",
        "trinity.explorer.max_repeat_times_per_runner: 1",
        "trinity.explorer.runner_per_model: 0",
        "the engines take 8 GPUs (trinity.explorer.rollout_model: 8",
    ):
        assert f"\n  - {key}" in message


@pytest.mark.parametrize(
    ("sizes", "fits"),
    [
        ({"node_num": 1, "gpu_per_node": 8, "engine_num": 4}, True),
        ({"node_num": 1, "gpu_per_node": 8, "engine_num": 8}, False),
        ({"node_num": 2, "gpu_per_node": 8, "engine_num": 4, "tensor_parallel_size": 2}, True),
        ({"node_num": 2, "gpu_per_node": 8, "engine_num": 4, "tensor_parallel_size": 4}, False),
        ({"node_num": 1, "gpu_per_node": 1}, False),
    ],
)
def test_engines_that_leave_the_trainer_no_gpu_are_refused(
    config: AstuneConfig, tmp_path: Path, sizes: dict[str, int], fits: bool
) -> None:
    trinity = trinity_for(tmp_path, tinker=False, **sizes)
    if fits:
        check_before(config, trinity)
    else:
        assert "leaves none for the trainer; lower engine_num" in refusal(check_before, config, trinity)


# ---- No Ray ----


def test_an_address_where_nothing_listens_is_refused_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    message = refusal(connect, address, "space", {}, ADDRESS)
    assert f"trinity.cluster.ray_address: nothing answers at {address}" in message
    assert "ray start --head" in message


def test_gpus_are_counted_only_where_ray_answers_and_only_if_needed(tmp_path: Path) -> None:
    for needless in (trinity_for(tmp_path), trinity_for(tmp_path, tinker=False, node_num=1, gpu_per_node=2)):
        needless.cluster.ray_address = "nowhere"
        check_gpus(needless)
    uncounted = trinity_for(tmp_path, tinker=False)
    uncounted.cluster.ray_address = "127.0.0.1:1"
    assert "nothing answers at 127.0.0.1:1" in refusal(check_gpus, uncounted)


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "127.0.0.1", "here", "127.0.0.1:port", ""])
def test_an_address_of_another_form_is_refused(address: str) -> None:
    assert "expected 'local', 'auto' or 'host:port'" in refusal(check_address, address, ADDRESS)


def test_something_that_is_no_ray_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_connect, "LONGEST_GREETING", 4.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept_and_say_nothing, args=(server,), daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert f"got '{address}': no Ray answers there within 4 s" in refusal(check_address, address, ADDRESS)


@pytest.mark.fault(
    "Runs and resuming", "Ray's processes do not start in time, as on a busy machine", "an error that says what to do"
)
def test_a_ray_that_starts_late_is_an_error_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(**options: Any) -> None:
        raise Exception("The current node timed out during startup.")  # as Ray's own, which has no narrower class

    monkeypatch.setattr(ray_connect.ray, "init", late)
    message = refusal(connect, "local", "space", {}, ADDRESS)
    assert message.startswith("trinity.cluster.ray_address: Ray did not start on this machine, after 0 s. ")
    assert message.endswith("Ray says: Exception: The current node timed out during startup.")


def test_rays_processes_get_longer_than_ray_itself_gives_them(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([RuntimeError("no node yet"), RuntimeError("no node yet"), {"node_id": "n"}])

    def get_node(gcs_address: str, node_id: str) -> dict[str, str]:
        if isinstance(answer := next(answers), RuntimeError):
            raise answer
        return answer

    monkeypatch.setattr(ray_connect.services, "get_node", get_node)
    with ray_connect.patient_start():
        assert ray_connect.services.get_node("address", "n") == {"node_id": "n"}
    assert ray_connect.services.get_node is get_node


def test_rays_agents_are_told_their_ports_as_ray_waits_a_moment_only_for_what_they_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def start_raylet(address: str, **options: Any) -> Any:
        assert ray_connect.services.start_ray_process(["reaper"], "reaper") == ["reaper"]
        return options, ray_connect.services.start_ray_process(["raylet"], process_type="raylet")

    def start_ray_process(command: list[str], process_type: str) -> list[str]:
        return command

    monkeypatch.setattr(ray_connect.services, "start_raylet", start_raylet)
    monkeypatch.setattr(ray_connect.services, "start_ray_process", start_ray_process)
    with ray_connect.patient_start():
        found, command = ray_connect.services.start_raylet("address", node_manager_port=0, metrics_agent_port=None)
    assert found.pop("node_manager_port") == 0 and found.keys() == {*ray_connect.AGENT_PORTS}
    assert len({*found.values()}) == 4 and all(20_000 <= port < 32_000 for port in found.values())
    assert command == ["raylet", f"--dashboard_agent_listen_port={found['dashboard_agent_listen_port']}"]
    assert ray_connect.services.start_ray_process is start_ray_process
    assert ray_connect.services.start_raylet is start_raylet


def accept_and_say_nothing(server: socket.socket) -> None:
    held = []
    try:
        while True:
            held.append(server.accept())
    except OSError:
        for connection, _ in held:
            connection.close()


def test_a_cluster_that_answers_passes(cluster: Any) -> None:
    check_address(cluster.address, ADDRESS)


# ---- What the cluster knows ----


def test_what_every_node_sees_passes(cluster: Any, config: AstuneConfig, tmp_path: Path) -> None:
    trinity = trinity_for(tmp_path)
    look_at_cluster(config, trinity)
    assert list(Path(trinity.get_checkpoint_job_dir()).iterdir()) == []


@pytest.mark.fault(
    "Input files and settings",
    "a node with GPUs lacks flash-attn, which the attention of training workers needs",
    "the run is refused before it starts, with the node, how to install it and the way without",
)
def test_a_node_whose_gpus_train_without_flash_attn_is_named(
    cluster: Any, config: AstuneConfig, tmp_path: Path
) -> None:
    nodes = ray_nodes.live_nodes()
    question = NodeQuestion(config.model_dump_json(), str(tiny_model_dir()), "", "flash_attention_2")
    found = [problems for _, problems in ray_nodes._ask(nodes, question)]
    assert sorted(map(len, found)) == [0, 1]  # the other node has no GPU
    message = refusal(check_cluster, config, trinity_for(tmp_path, tinker=False), "flash_attention_2")
    assert (
        f"on {nodes[0]['NodeManagerAddress']}: the attention 'flash_attention_2' of training workers on GPUs lacks "
        in message
    )
    assert "pip install flash-attn==2.8.3 --no-build-isolation" in message and "astune.model.attention: sdpa" in message


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ({"node_num": 1, "gpu_per_node": 8}, "1 nodes with 8 GPUs each are asked for, but"),
        ({"node_num": 2, "gpu_per_node": 2}, "2 nodes with 2 GPUs each are asked for, but"),
        ({"engine_num": 2}, "the engines take 2 GPUs"),
        ({"engine_num": 1, "tensor_parallel_size": 4}, "the engines take 4 GPUs"),
    ],
)
def test_gpus_that_the_cluster_has_not_are_refused(
    cluster: Any, config: AstuneConfig, tmp_path: Path, sizes: dict[str, int], told: str
) -> None:
    message = refusal(look_at_cluster, config, trinity_for(tmp_path, tinker=False, **sizes))
    assert told in message
    assert "trinity.cluster.node_num" in message


def test_gpus_that_the_cluster_has_are_enough(cluster: Any, config: AstuneConfig, tmp_path: Path) -> None:
    look_at_cluster(config, trinity_for(tmp_path, tinker=False))
    look_at_cluster(config, trinity_for(tmp_path, tinker=False, node_num=1, gpu_per_node=2))
    with pytest.raises(ConfigError, match="1 nodes with 3 GPUs each are asked for"):
        look_at_cluster(config, trinity_for(tmp_path, tinker=False, node_num=1, gpu_per_node=3))


def test_a_cluster_without_gpus_is_refused_unless_tinker_computes(tmp_path: Path) -> None:
    nodes = [{"NodeManagerAddress": "10.0.0.1", "Resources": {"CPU": 8.0}}]
    (problem,) = preflight._gpus_of(nodes, trinity_for(tmp_path, tinker=False))
    assert "no node of the cluster has a GPU (10.0.0.1 has 0)" in problem
    assert list(preflight._gpus_of(nodes, trinity_for(tmp_path))) == []


@pytest.fixture
def only_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder under a name that means another place to every process but this one, as a local disk does."""
    folder = tmp_path / "disk"
    folder.mkdir()
    monkeypatch.chdir(folder)
    yield Path("/proc/self/cwd")


def test_a_workflow_that_workers_cannot_import_is_refused(
    cluster: Any, config: AstuneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_the_driver_has_it.py").write_text(WORKFLOW)
    monkeypatch.syspath_prepend(tmp_path)
    spec = "only_the_driver_has_it:play"
    lost = config.model_copy(update={"rollout": config.rollout.model_copy(update={"agentscope_learn_protocol": spec})})
    message = refusal(look_at_cluster, lost, trinity_for(tmp_path))
    addresses = {node["NodeManagerAddress"] for node in ray.nodes()}
    assert all(f"on {address}" in message for address in addresses)
    assert (
        "astune.rollout.agentscope_learn_protocol: workflow 'only_the_driver_has_it:play': there is no module"
        in message
    )
    assert "install the package that has it on every node" in message


def test_plugins_and_tasks_in_files_that_workers_cannot_see_are_refused(
    cluster: Any, config: AstuneConfig, tmp_path: Path, only_here: Path
) -> None:
    Path("mine.py").write_text(WORKFLOW)
    Path("tasks.jsonl").write_text("{}\n")
    spec = f"{only_here / 'mine.py'}:play"
    changed = config.model_dump() | {
        "rollout": {"agentscope_learn_protocol": spec},
        "task_judge": {"judge_protocol": spec},
        "task_reader": {"jsonl": {"training": {"file_path": str(only_here / "tasks.jsonl")}}},
    }
    message = refusal(look_at_cluster, AstuneConfig.model_validate(changed), trinity_for(tmp_path))
    assert "astune.rollout.agentscope_learn_protocol: workflow" in message
    assert "astune.task_judge.judge_protocol: judge" in message
    assert "no such file" in message
    assert "astune.task_reader.jsonl.training.file_path: there is no file" in message


def test_a_model_that_workers_cannot_see_is_refused(
    cluster: Any, config: AstuneConfig, tmp_path: Path, only_here: Path
) -> None:
    Path("model").mkdir()
    trinity = trinity_for(tmp_path)
    trinity.model.model_path = str(only_here / "model")
    message = refusal(look_at_cluster, config, trinity)
    assert f"astune.model.path: there is no folder {only_here / 'model'}" in message
    assert "put the model on a path that every node sees" in message


def test_a_run_folder_that_the_nodes_do_not_share_is_refused(
    cluster: Any, config: AstuneConfig, only_here: Path
) -> None:
    message = refusal(look_at_cluster, config, trinity_for(only_here))
    assert "the run folder is not the same as where the run was started" in message
    assert "astune.runs_dir must be on a file system that all nodes share" in message


def test_a_node_without_astune_says_so_and_so_does_one_with_another_version(tmp_path: Path) -> None:
    sent = tmp_path / "probe"
    sent.write_bytes(ray.cloudpickle.dumps(ray_nodes._make_probe()))
    node = (
        "import sys\nif sys.argv[2:]: sys.modules['astune'] = None\n"
        "import ray.cloudpickle\nprobe = ray.cloudpickle.load(open(sys.argv[1], 'rb'))\n"
        "print(*probe('9.9.9', ('', '', '', '')))"
    )
    run = [sys.executable, "-c", node, str(sent)]
    without = subprocess.run([*run, "without"], capture_output=True, text=True, check=True).stdout
    assert "ASTune cannot be imported there" in without
    assert "install astune==9.9.9 on every node" in without
    other = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert f"ASTune {astune.__version__} is installed there, here 9.9.9" in other


def test_a_folder_without_tokenizer_is_no_model(config: AstuneConfig, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    problems = find_problems(NodeQuestion(config.model_dump_json(), str(tmp_path / "model"), "", ""))
    assert [problem.split("; ")[0] for problem in problems] == [
        f"astune.model.path: {tmp_path / 'model'} has no config.json",
        f"astune.model.path: {tmp_path / 'model'} has no tokenizer",
    ]
