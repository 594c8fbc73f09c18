"""The shape of the code, executable: who may import whom, what may be heavy, how long things may get."""

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from tests.rows import each_row

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "astune"
RINGS = {
    "line": (
        {"ropes"},
        {"token_ids", "sampling", "errors", "version"},
        {"types", "support"},
        {"plugins"},
        {"config", "workers"},
        {"clients", "monitor", "store", "tools", "workspaces"},
        {"task_reader", "context_tracker", "task_judge", "algorithm"},
        {"gateway", "examples"},
        {"workflow", "methods"},
        {"rollout"},
        {"training"},
        {"recordings"},
        {"backbone"},
    ),
    "tools": (
        {"environment", "judging", "check_tasks", "selection"},
        {"rubrics", "prompts", "data"},
        {"viewer"},
        {"online"},
        {"doctor", "traces"},
    ),
    "worlds": ({"worlds", "tinker_server"},),
    "shell": ({"api"}, {"cli", "testing", "tuner"}, {"rl"}, {"__init__", "__main__"}),
}
"""What a run needs; what looks at runs, tasks and judges; what is found by name and can be removed alone; and the
commands. In each the lowest layer comes first."""
LAYERS = tuple(layer for ring in RINGS.values() for layer in ring)
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}
HEAVY = {"torch", "transformers", "vllm", "ray", "trinity", "verl", "agentscope", "datasets", "peft", "trl"}
HEAVY |= {"gymnasium", "reasoning_gym", "appworld", "loguru", "tensorboard", "wandb", "swanlab", "mlflow", "trackio"}
HEAVY |= {"opentelemetry", "datasketch", "markitdown", "pypdf"}
PLACES = {
    "loguru": {"support/run_log.py"},
    "opentelemetry": {"online/telemetry.py"},
    "datasets": {"task_reader/huggingface.py"},
    "datasketch": {"data/near.py"},
    "markitdown": {"data/documents.py"},
    "pypdf": {"data/documents.py"},
    "gymnasium": {"worlds/gymnasium_env.py"},
    "reasoning_gym": {"workers/reasoning_gym_worker.py"},
    "appworld": {"worlds/appworld_worker.py"},
    **{name: {f"monitor/trackers/{name}.py"} for name in ("tensorboard", "wandb", "swanlab", "mlflow", "trackio")},
}
"""Where the libraries of readers, environments and trackers may be imported, and those of logs and traces."""
MOST_LINES_OF_A_MODULE = 400
MOST_LINES_OF_A_FUNCTION = 60
MOST_MODULES_OF_A_PACKAGE = 20
MODULES = sorted(
    path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if not {"tutorial", "versions"} & {*path.parts}
)


@cache
def parse(text: str) -> ast.Module:
    """The tree of a module's text; most rules look at all of them."""
    return ast.parse(text)


def home(module: Path) -> str:
    """The package or module directly under `astune` that a file belongs to."""
    return module.parts[0].removesuffix(".py")


def imports(module: Path, text: str) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything a file imports, inside functions and TYPE_CHECKING blocks too."""
    for node in ast.walk(parse(text)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = ("astune", *module.parent.parts)
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            stem = ".".join(part for part in (base, node.module) if part)
            yield from ((node.lineno, f"{stem}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from ((node.lineno, str(name.value)) for name in node.args[:1] if isinstance(name, ast.Constant))


def may_be_heavy(module: Path, name: str) -> bool:
    """Each heavy library has one place: torch and its kin under a backbone, agentscope in its adapters, those of
    readers and environments in one module each."""
    if name == "agentscope":
        return "agentscope" in module.stem
    if name in PLACES:
        return str(module) in PLACES[name]
    return module.parts[0] == "tinker_server" or (len(module.parts) > 2 and module.parts[0] == "backbone")


def violations(module: Path, text: str) -> Iterator[str]:
    for line, name in imports(module, text):
        top, *rest = name.split(".")
        if top in HEAVY and not may_be_heavy(module, top):
            yield f"astune/{module}:{line} imports heavy {top}"
        if top in {"tutorial", "tests", "scripts", "benchmarks", "launcher"}:
            yield f"astune/{module}:{line} imports {top}, which stands outside the package"
        other = rest[0] if top == "astune" and rest else home(module)
        if other != home(module) and RANK.get(other, 0) >= RANK[home(module)]:
            yield f"astune/{module}:{line} imports {name}: upward or sideways"


def test_every_module_has_a_layer_and_every_layer_has_modules() -> None:
    assert len(MODULES) > 10
    assert {home(module) for module in MODULES} == set(RANK)


def test_modules_import_only_from_lower_layers() -> None:
    assert [each for module in MODULES for each in violations(module, (PACKAGE / module).read_text())] == []


@each_row(
    ("module", "text", "expected"),
    [
        ("types.py", "import astune.cli", "imports astune.cli: upward"),
        ("rollout/group.py", "def f():\n    from astune.backbone import base", "upward"),
        ("task_judge/x.py", "from ..algorithm import advantage", "sideways"),
        ("rollout/group.py", "import torch.nn", "imports heavy torch"),
        ("backbone/base.py", "import torch", "imports heavy torch"),
        ("workflow/tuner.py", "import agentscope", "imports heavy agentscope"),
        ("task_reader/jsonl.py", "from datasets import load_dataset", "imports heavy datasets"),
        ("cli/run.py", "import tutorial.math_agent", "outside the package"),
        ("monitor/x.py", "from importlib import import_module\nimport_module('astune.cli.run')", "upward"),
    ],
)
def test_the_rule_finds_what_it_forbids(module: str, text: str, expected: str) -> None:
    (found,) = violations(Path(module), text)
    assert expected in found


@each_row(
    ("module", "text"),
    [
        ("backbone/local/learning/learner.py", "import torch"),
        ("online/agent/agentscope_v2.py", "import agentscope"),
        ("workflow/agentscope_v2.py", "import agentscope"),
        ("task_reader/huggingface.py", "import datasets"),
        ("cli/run.py", "from astune.backbone import base"),
        ("task_judge/x.py", "from .judge_base import Judge"),
    ],
)
def test_the_rule_lets_through_what_is_allowed(module: str, text: str) -> None:
    assert list(violations(Path(module), text)) == []


def import_graph() -> dict[str, set[str]]:
    """Module -> the modules of astune that it imports."""
    names = {module: ".".join(("astune", *module.with_suffix("").parts)) for module in MODULES}
    names = {module: name.removesuffix(".__init__") for module, name in names.items()}
    graph = {}
    for module, name in names.items():
        found = {dotted for _, dotted in imports(module, (PACKAGE / module).read_text())}
        found |= {dotted.rpartition(".")[0] for dotted in found - set(names.values())}  # `from module import function`
        graph[name] = found & set(names.values()) - {name}
    return graph


def test_no_module_imports_itself_through_others() -> None:
    """Not from functions and TYPE_CHECKING blocks either: a circle is one subject in several files."""
    graph = import_graph()
    assert set(TopologicalSorter(graph).static_order()) == set(graph)  # a CycleError names the circle


def test_a_public_class_has_a_name_of_its_own() -> None:
    homes: dict[str, list[str]] = {}
    theirs = {"tuner", "rl"}  # whose names are those of AgentScope 1.x and of its article
    for module in (each for each in MODULES if home(each) not in theirs):
        for node in parse((PACKAGE / module).read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(module))
    shared = {name: places for name, places in homes.items() if len(places) > 1}
    assert shared == {}


def test_no_module_is_too_long() -> None:
    lengths = {str(module): len((PACKAGE / module).read_text().splitlines()) for module in MODULES}
    assert {name: lines for name, lines in lengths.items() if lines > MOST_LINES_OF_A_MODULE} == {}


def test_no_package_has_too_many_modules() -> None:
    counts = Counter(str(module.parent) for module in MODULES)
    assert {name: count for name, count in counts.items() if count > MOST_MODULES_OF_A_PACKAGE} == {}


def test_no_function_is_too_long() -> None:
    too_long = []
    for module in MODULES:
        for node in ast.walk(parse((PACKAGE / module).read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > MOST_LINES_OF_A_FUNCTION:
                    too_long.append(f"astune/{module}:{node.lineno} {node.name} has {lines} lines")
    assert too_long == []


@pytest.mark.parametrize(
    "statement",
    [
        "import astune",
        "import astune.cli",
        "from astune import Workflow, WorkflowOutput, Task",
        "import astune.testing",
    ],
)
def test_importing_loads_nothing_heavy(statement: str) -> None:
    code = f"{statement}\nimport sys\nprint(*sorted({HEAVY!r} & set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert loaded.stdout.strip() == ""


def test_help_loads_only_the_parser() -> None:
    code = (
        "import sys\nfrom astune.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as stop:\n    assert stop.code == 0\n"
        "slow = {'pydantic', 'omegaconf', 'rich', 'openai', 'httpx', 'yaml', 'starlette', 'tokenizers'}\n"
        "print('loaded:', *sorted(slow & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    assert shown.rstrip().endswith("loaded:")


def test_all_public_names_can_be_imported() -> None:
    import astune

    assert {name for name in astune.__all__ if not hasattr(astune, name)} == set()
    with pytest.raises(AttributeError, match="no attribute 'NoSuchName'"):
        _ = astune.NoSuchName
