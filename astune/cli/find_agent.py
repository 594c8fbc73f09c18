"""Finds what `astune init --agent` names: a workflow, or an agent of AgentScope to make one of. Nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from astune.errors import ConfigError, nearest

Function = ast.FunctionDef | ast.AsyncFunctionDef
ASK = {
    "Agent": """\
    defaults = training_defaults()  # nobody is there to permit a tool, and the prompt has no clock
    agent.state.permission_context.mode = defaults["state"].permission_context.mode
    agent.injection_config = defaults["injection_config"]
    reply = await agent.reply(UserMsg(name="user", content=task.query))
""",
    "ReActAgent": """\
    agent.set_console_output_enabled(False)
    reply = await agent(Msg("user", task.query, "user"))
""",
}
"""How an agent is asked, by its class: AgentScope 2.x's and 1.x's."""
IMPORTS = {
    "Agent": ("from agentscope.message import UserMsg\n", "from astune.workflow.agentscope import training_defaults\n"),
    "ReActAgent": ("from agentscope.message import Msg\n", ""),
}
FORMATTER = (
    "from agentscope.formatter import OpenAIChatFormatter\n",
    "\n    agent.formatter = OpenAIChatFormatter()  # as tuner.model() takes messages",
)
"""What 1.x needs on top, whose models do not format messages themselves."""
WORKFLOW = '''\
"""The workflow: each episode gets a fresh agent of `{name}`, with the model that is trained."""

from pathlib import Path

{theirs}
from astune import Task, Tuner, WorkflowOutput
from astune.plugins import load_plugin
{ours}
FILE = Path(__file__).parent / {file!r}
make_agent = load_plugin(f"{{FILE}}:{name}", kind="agent")


async def answer(task: Task, tuner: Tuner) -> WorkflowOutput:
    agent = {make}
{ask}    return WorkflowOutput(answer=reply.get_text_content())
'''
MODEL = ("model", 2)
"""The name and the place of the model among the arguments of AgentScope's agents."""
REPLACED = '\n    agent.model = tuner.model("agent")  # in the place of the one that it makes itself'
"""What follows where the agent is not handed its model."""
NO_PARAMETER = """\
{place}: {name} has an agent, but no model to hand it. Each episode needs a fresh agent \
with the model that is trained; let a function take the model and return the agent:
    def make_agent(model):
        return {kind}(..., model=model)
and name it: --agent {file}:make_agent"""
CLIENT = """\
{place} makes a client of OpenAI. Let a workflow take the client of its episode instead:
    async def answer(task, tuner):
        client = tuner.openai_client("agent")  # in a plain def: openai_client("agent", sync=True)
        ...
        return astune.WorkflowOutput(answer=text)
and name it: --agent {file}:answer"""


@dataclass(frozen=True)
class Found:
    """What a folder can start from."""

    name: str
    kind: str = ""
    """The class of the agent; empty for a workflow."""
    parameter: str = ""
    """What takes the model; empty where the agent makes its own, which is replaced."""
    is_async: bool = False
    wrong: str = ""
    """Why an agent cannot be made a workflow, with what to change."""

    def write_workflow(self, file: str) -> str:
        """Write the module that makes a workflow of the agent in `file`, a path from the folder of the module."""
        theirs, ours = IMPORTS[self.kind]
        given = f'{self.parameter}=tuner.model("agent")' if self.parameter else ""
        make = f"{'await ' * self.is_async}make_agent({given})"
        if not self.parameter:
            make += REPLACED
            if self.kind == "ReActAgent":
                theirs, make = FORMATTER[0] + theirs, make + FORMATTER[1]
        parts = {"theirs": theirs, "ours": ours, "ask": ASK[self.kind], "make": make}
        return WORKFLOW.format(name=self.name, file=file, **parts)


def find_agent(agent: str, choose: Callable[[str], str | None]) -> tuple[str, Found]:
    """Find the workflow or agent in `file.py` or `file.py:name`, and return the file with it. A workflow goes before an
    agent, which may be a part of it. `choose` gets a question if there are several; it returns a name, or None.

    Raises `ConfigError` where there is none, or more than one and none is named."""
    file, _, name = agent.rpartition(":") if ".py:" in agent else (agent, "", "")
    if not Path(file).is_file():
        raise ConfigError(f"--agent: no such file: {file}; expected file.py or file.py:name")
    try:
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        raise ConfigError(f"--agent: {file} is no Python file: {error}") from error
    workflows = [Found(node.name) for node in tree.body if _is_workflow(node)]  # type: ignore[attr-defined]
    agents = [found for node in tree.body if not _is_workflow(node) for found in _agents_in(node, tree, file)]
    usable = workflows or [found for found in agents if not found.wrong]
    what = "workflows" if workflows else "agents"
    if not name and len(usable) > 1:
        name = choose(f"{file} has the {what} {', '.join(each.name for each in usable)}; which one") or ""
    found = [each for each in [*workflows, *agents] if each.name == name] if name else usable or agents
    if not found and (workflows or agents):
        names = [each.name for each in usable or agents]
        raise ConfigError(
            f"--agent: {file} has no workflow or agent {name!r}.{nearest(name, names)} It has {', '.join(names)}"
        )
    if not found:
        raise ConfigError(f"--agent: {_without_agent(tree, file, name)}")
    if len(found) > 1 and not found[0].wrong:
        names = [each.name for each in found]
        raise ConfigError(
            f"--agent: {file}: it has the {what} {', '.join(names)}; name one, as --agent {file}:{names[0]}"
        )
    if found[0].wrong:
        raise ConfigError(f"--agent: {found[0].wrong}")
    return file, found[0]


def _without_agent(tree: ast.Module, file: str, name: str) -> str:
    client = next(_calls(tree, _find_imports(tree, "openai"), ("OpenAI", "AsyncOpenAI")), None)
    if client is not None:
        return CLIENT.format(place=f"{file}:{client[0].lineno}", file=file)
    return (
        f"{file}: it has no workflow{f' {name!r}' if name else ''}: a function of (task, tuner) or (task, model), "
        "or a class of Workflow; and no agent of AgentScope: a function of (model) that returns one"
    )


def _is_workflow(node: ast.stmt) -> bool:
    if isinstance(node, ast.ClassDef):
        return any(ast.unparse(base).rpartition(".")[2] == "Workflow" for base in node.bases)
    if isinstance(node, Function):
        names = {argument.arg for argument in node.args.args}
        return "task" in names and bool(names & {"tuner", "model"})
    return False


def _agents_in(node: ast.stmt, tree: ast.Module, file: str) -> Iterator[Found]:
    """At most one for each function, class or other statement of the module."""
    classes = _find_classes(tree)
    if isinstance(node, ast.ClassDef) and node.name in classes:
        yield _own_class(node, classes[node.name], file)
        return
    call, kind = next(_calls(node, classes, tuple(ASK)), (None, ""))
    if call is None:
        return
    name = getattr(node, "name", "") or _target_of(node) or "the module"
    if not isinstance(node, Function) or not _returns(node, call):
        yield _unusable(f"{file}:{call.lineno}", name, kind, file)
        return
    yield _describe(node, name, kind, _model_parameter(node, call, _place_of_model(tree, call)), file, call)


def _own_class(node: ast.ClassDef, kind: str, file: str) -> Found:
    """A subclass of an agent, which its constructor makes."""
    found = _constructor(node)
    if found is None:
        return _unusable(f"{file}:{node.lineno}", node.name, kind, file)
    made, call = found
    return _describe(made, node.name, kind, _model_parameter(made, call, MODEL), file, call)


def _constructor(node: ast.ClassDef) -> tuple[ast.FunctionDef, ast.Call] | None:
    """The constructor of a class, and its call of the one of its base; None without either."""
    for made in node.body:
        if isinstance(made, ast.FunctionDef) and made.name == "__init__":
            calls = (each for each in ast.walk(made) if isinstance(each, ast.Call))
            call = next((each for each in calls if ast.unparse(each.func) == "super().__init__"), None)
            return None if call is None else (made, call)
    return None


def _describe(function: Function, name: str, kind: str, parameter: str | None, file: str, call: ast.Call) -> Found:
    """The agent of a function that makes it, or of a constructor."""
    missing = [other for other in _list_required(function.args) if other not in (parameter, "self")]
    if missing and parameter is None:
        return _unusable(f"{file}:{call.lineno}", name, kind, file)
    needs = (
        f"{file}:{function.lineno}: {name} also needs {', '.join(missing)}; an episode has only a model to hand it: "
    )
    wrong = f"{needs}give each a default, or name a function of ({parameter}) that returns the agent" if missing else ""
    return Found(name, kind, parameter or "", isinstance(function, ast.AsyncFunctionDef), wrong)


def _unusable(place: str, name: str, kind: str, file: str) -> Found:
    return Found(name, kind, wrong=NO_PARAMETER.format(place=place, name=name, kind=kind, file=file))


def _find_classes(tree: ast.Module) -> dict[str, str]:
    """The names that the module has from AgentScope, each with what it is called there; its own agents with the class
    that they are of."""
    names = _find_imports(tree, "agentscope")
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base) for base in node.bases]
            kinds = [names.get(base, base.rpartition(".")[2]) for base in bases if base.partition(".")[0] in names]
            if kind := next((kind for kind in kinds if kind in ASK), None):
                names[node.name] = kind
    return names


def _place_of_model(tree: ast.Module, call: ast.Call) -> tuple[str, int]:
    """The name and the place of the argument of `call` that is the model."""
    name = ast.unparse(call.func)
    node = next((each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == name), None)
    found = None if node is None else _constructor(node)
    parameter = None if found is None else _model_parameter(*found, MODEL)
    if found is None or parameter is None:
        return MODEL
    arguments = [each.arg for each in found[0].args.args[1:]]
    return parameter, arguments.index(parameter) if parameter in arguments else len(arguments)


def _find_imports(tree: ast.Module, package: str) -> dict[str, str]:
    """The names that the module has from `package`, each with what it is called there."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package and not node.level:
            names |= {each.asname or each.name: each.name for each in node.names}
        elif isinstance(node, ast.Import):
            own = [each for each in node.names if each.name.split(".")[0] == package]
            names |= {each.asname or package: each.name for each in own}
    return names


def _calls(node: ast.AST, imported: dict[str, str], classes: Sequence[str]) -> Iterator[tuple[ast.Call, str]]:
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            first, _, rest = ast.unparse(call.func).partition(".")
            name = (rest or imported.get(first, "")).rpartition(".")[2]
            if first in imported and name in classes:
                yield call, name


def _target_of(node: ast.AST) -> str:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return next((target.id for target in targets if isinstance(target, ast.Name)), "")


def _returns(function: Function, call: ast.Call) -> bool:
    """True if the function returns the agent that `call` makes."""
    names = {_target_of(node) for node in ast.walk(function) if getattr(node, "value", None) is call}
    values = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
    return any(value is call or (isinstance(value, ast.Name) and value.id in names) for value in values)


def _model_parameter(function: Function, call: ast.Call, place: tuple[str, int]) -> str | None:
    """The parameter that `call` gets as its model, by that name or at that place. None if it gets another, or one made
    of the parameter."""
    given = [each.value for each in call.keywords if each.arg == place[0]] or call.args[place[1] : place[1] + 1]
    if not given and function.args.kwarg is not None and any(each.arg is None for each in call.keywords):
        return place[0]  # it hands on what it is given
    values = [part for value in given for part in (value.values if isinstance(value, ast.BoolOp) else [value])]
    names = {value.id for value in values if isinstance(value, ast.Name)}
    for argument in [*function.args.args, *function.args.kwonlyargs]:
        if argument.arg in names and not _is_text(argument) and not _is_made_of(function, argument.arg):
            return argument.arg
    return None


def _is_text(argument: ast.arg) -> bool:
    return argument.annotation is not None and "str" in ast.unparse(argument.annotation).replace("|", " ").split()


def _is_made_of(function: Function, name: str) -> bool:
    """True if the function puts into `name` what a call makes of `name`, as a model of the model's name."""
    made = [node.value for node in ast.walk(function) if isinstance(node, ast.Assign) and _target_of(node) == name]
    calls = [value for value in made if isinstance(value, ast.Call)]
    return any(isinstance(part, ast.Name) and part.id == name for value in calls for part in ast.walk(value))


def _list_required(arguments: ast.arguments) -> list[str]:
    positional = [*arguments.posonlyargs, *arguments.args]
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    without = [
        *positional[: len(positional) - len(arguments.defaults)],
        *(each for each, value in keywords if not value),
    ]
    return [each.arg for each in without]
