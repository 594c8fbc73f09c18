"""Does the workflow load, does an episode of it come to its end when the model is right, and do its tools run?

A tool is tried by a call as it should be and by one without arguments, which is refused before anybody is asked for
permission, and before the tool begins.
"""

from __future__ import annotations

import linecache
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain

from astune.check_tasks.wordings import right_answer, wordings, wrong_answer
from astune.clients.chat import ChatClient
from astune.config.rules import plays_episodes
from astune.config.rules.models import pattern_problems
from astune.context_tracker.prompt.call_check import OFFERS_TOOLS
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.doctor.checked_config import CheckedConfig, Missing
from astune.doctor.checks.packages import how_to_install
from astune.doctor.findings import Finding, fail, ok, skip, warn
from astune.doctor.scripted_episode import ENDS, Blocked, DryRun, ModelScript, needs_arguments, play
from astune.errors import ConfigError, PluginError, SetupError, name_error
from astune.plugins import load_plugin
from astune.rollout.setup import RolloutSetup
from astune.support.resources import tiny_model_dir
from astune.support.user_code import code_of, place_of, source_of
from astune.support.user_values import text_of
from astune.task_judge import Judge
from astune.tools import ToolServers
from astune.training.rollout_setup import NoPolicy, agent_models, environments_of, sampling_for
from astune.types import Episode, StopReason, Task, Verdict
from astune.workflow.agentscope import HOST_TOOLS
from astune.workflow.workflow_base import as_workflow

KEY = "astune.rollout.agentscope_learn_protocol"


def check_workflow(checked: CheckedConfig) -> Iterator[Finding]:
    spec = checked.config.rollout.agentscope_learn_protocol
    assert spec is not None, "astune.config.rules refuses a configuration without a workflow"
    try:
        factory = as_workflow(load_plugin(spec, kind="workflow"))
    except PluginError as error:
        fix = how_to_install(str(error)) or _how_to_fix(str(error))
        yield fail(str(error), where=checked.where(KEY), fix=fix)
        return
    try:
        factory()
    except Exception as error:
        what = f"the workflow cannot be made: {name_error(error)}{code_of(error)}"
        yield fail(what, where=place_of(error) or checked.where(KEY), fix="fix __init__: it runs once per episode")
        return
    checked.workflow = factory
    yield ok(f"{spec} loads, and its parameters fit")


def _how_to_fix(message: str) -> str:
    if "importing it failed" in message:
        return "fix the line that is named: the file must import without errors"
    if "there is no" in message or "no such file" in message or "Expected 'package.module:Name'" in message:
        return "name a file and a class or function that there is: 'my_agent.py:MyWorkflow'"
    return (
        "write it as a Workflow class with `execute(self, task, tuner)` or a function of (task, tuner) or (task, model)"
    )


SECONDS = 20.0
"""Most time an episode gets in which every model answers at once."""
BLOCKED_SECONDS = 0.3
"""Seconds of one episode that a line may take before it is told of."""
DO_NOT_BLOCK = "use await asyncio.sleep, an async HTTP client, or await asyncio.to_thread(...) for code that waits"
STEP_THROUGH = "look at that line; to step through: astune --conf {} --backbone=debug"


class AnyVerdict:
    """Stands in for a judge that cannot be asked."""

    async def judge(self, task: Task, episode: Episode) -> Verdict:
        return Verdict(0.0, judged_by="doctor")


def dry_setup(checked: CheckedConfig) -> RolloutSetup:
    """The parts of a rollout without models. Judges and templates that could not be had are stood in for."""
    config = checked.config
    try:
        chat_format = checked.chat_format
    except Missing:
        chat_format = ChatFormat.load(tiny_model_dir(), tool_call_format="hermes")
    auxiliary_models = {
        name: ChatClient(
            name, model.model_copy(update={"api_key_env": None}), key=f"astune.rollout.auxiliary_models.{name}"
        )
        for name, model in config.rollout.auxiliary_models.items()
    }
    service = config.task_reader.env_service
    return RolloutSetup(
        policy=NoPolicy(config.model.max_model_len or chat_format.context_length or 2**20),
        chat_format=chat_format,
        workflow_factory=checked.workflow,
        judge=_judge(checked),
        config=config.rollout,
        judge_timeout=SECONDS,
        auxiliary_models=auxiliary_models,
        models=agent_models(config, {}),
        environments=environments_of(service),
        environment_params=service.params,
        tools=checked.servers,
        workspaces=checked.workspaces,
    )


def _judge(checked: CheckedConfig) -> Judge | None:
    """The judge, if it was tried and knows a right answer: one that does not is told of once."""
    try:
        return checked.judge if checked.judge is None or checked.wording else AnyVerdict()
    except Missing:
        return AnyVerdict()


def check_dry_run(checked: CheckedConfig) -> Iterator[Finding]:
    setup, task = dry_setup(checked), checked.first_task()
    seconds = min(SECONDS, checked.config.rollout.episode_timeout)
    try:
        played = _best(checked, setup, task, seconds)
        checked.dry_run = played
        problems = [*_problems(checked, played)]
        yield from problems
        if not any(problem.level == "fail" for problem in problems):
            yield from _try_tools(checked, setup, task, played, seconds)
    except SetupError as error:
        cause = error.__cause__ or error
        fix = "let it work on this machine: what it opens must be there before a run starts"
        yield fail(str(error), where=place_of(cause) or checked.where(KEY), fix=fix)
    except ConfigError as error:
        cause = error.__cause__ or error
        fix = "correct the name, there or in the configuration"
        yield fail(str(cause), where=place_of(cause) or checked.where("astune.models"), fix=fix)
    except Blocked as error:
        yield fail(
            f"the workflow is {error}: it blocks the event loop, so all other episodes would stand still",
            where=error.place or checked.where(KEY),
            fix=DO_NOT_BLOCK,
        )


def _try_tools(
    checked: CheckedConfig, setup: RolloutSetup, task: Task, played: DryRun, seconds: float
) -> Iterator[Finding]:
    """An episode with a call as it should be, and one with a call that lacks its arguments."""
    sampling = sampling_for(checked.config, "sampled")
    tool = tool_to_try(played, setup.tools)
    if tool is not None:
        script = ModelScript(played.script.text, probe_tool=tool, valid=True)
        yield from on_fitting_call(checked, play(task, setup, script, sampling, seconds=seconds), tool)
    probed = next((name for name, one in played.tools.items() if needs_arguments(one)), None)
    if probed is not None:
        script = ModelScript(played.script.text, probe_tool=probed)
        yield from on_call_without_arguments(checked, play(task, setup, script, sampling, seconds=seconds), probed)


def _best(checked: CheckedConfig, setup: RolloutSetup, task: Task, seconds: float) -> DryRun:
    """The episode in which the model is right, in the judge's words. Where the workflow gives the reward itself, the
    words are not known: of all there are, those that it rewards most."""
    sampling = sampling_for(checked.config, "sampled")
    try:
        patterns = [checked.wording]
    except Missing:
        patterns = wordings(checked.config.task_judge) if checked.config.task_judge.judge_protocol is None else ["{}"]
    runs: list[DryRun] = []
    for pattern in patterns:
        text = right_answer(task, pattern) or "42"
        runs.append(play(task, setup, ModelScript(text), sampling, seconds=seconds))
        if (reward := runs[-1].episode.reward) is None or reward >= 1:
            break
    return max(runs, key=lambda run: float("-inf") if run.episode.reward is None else run.episode.reward)


def _problems(checked: CheckedConfig, played: DryRun) -> Iterator[Finding]:
    episode, where = played.episode, checked.where(KEY)
    if episode.error is not None:
        refused = OFFERS_TOOLS in episode.error.message
        yield skip("the first call that offers tools is refused: see template") if refused else _error(checked, episode)
        return
    if not episode.turns:
        yield fail(
            "the workflow never called the model: there is nothing to train",
            where=where,
            fix="give the agent tuner.model(...), tuner.openai_client(...) or tuner.base_url(...) as its model",
        )
        return
    if plays_episodes(checked.config):  # an evaluation trains nothing
        yield from _find_untrained(episode, where)
    yield from _blocking(played)
    for key, said in pattern_problems(checked.config, {turn.agent for turn in episode.turns}):
        yield warn(
            said, where=checked.where(key), fix="correct it: a run whose first step has no such agent is refused"
        )
    for said in played.notes.values():
        yield warn(said, where=where, fix="fix it, or know that the run says the same")
    yield from _own_reward(checked, played, where)
    answer = None if episode.output is None else episode.output.answer
    calls = f"{len(episode.turns)} model call{'s' * (len(episode.turns) > 1)}"
    if episode.turns[-1].finish_reason == "length" and episode.task.answer is not None:
        yield fail(
            f"the reference answer of the first task alone has more than {checked.config.rollout.max_tokens} tokens: "
            "no answer could be complete",
            where=checked.where("astune.rollout.max_tokens"),
            fix="raise it; an answer needs room for thinking too",
        )
    elif (answer is None or not text_of(answer).strip()) and (episode.output is None or episode.output.reward is None):
        yield fail(
            f"the workflow returned no answer, though the model had given one ({played.script.text!r})",
            where=where,
            fix="return WorkflowOutput(answer=...) with the text of the agent's last message",
        )
    elif episode.task.answer is not None and not _has_passed(checked, episode):
        verdict = episode.verdict
        reason = f" ({verdict.reason})" if verdict is not None and verdict.reason else ""
        yield fail(
            f"the model said {played.script.text!r}, which is right, and the episode got reward "
            f"{episode.reward:g}{reason}; the workflow returned {answer!r}",
            where=where,
            fix="return the model's own last text: WorkflowOutput(answer=...); the judge sees nothing else",
        )
    else:
        tools = f", tools: {', '.join(played.tools)}" if played.tools else ""
        yield ok(f"one episode with a scripted model: {calls}{tools}; returned {answer!r:.60}")


def _blocking(played: DryRun) -> Iterator[Finding]:
    for (file, number), seconds in played.blocked.items():
        if seconds >= BLOCKED_SECONDS:
            code = linecache.getline(file, number).strip()
            yield warn(
                f"`{code}` blocks the event loop, here for {seconds:.1f} s of one episode: all other episodes stand "
                "still meanwhile, and no time limit is kept",
                where=f"{file}:{number}",
                fix=DO_NOT_BLOCK,
            )


def _own_reward(checked: CheckedConfig, played: DryRun, where: str) -> Iterator[Finding]:
    """A reward that the workflow gives must depend on the answer."""
    verdict, task = played.episode.verdict, played.episode.task
    if verdict is None or verdict.judged_by != "workflow":
        return
    if checked.config.task_judge.judge_protocol is not None:
        yield warn(
            "the workflow returns the reward itself, so the judge is never asked",
            where=checked.where("astune.task_judge.judge_protocol"),
            fix="take the judge out of the configuration, or reward=... out of the workflow's output",
        )
    if task.answer is None:
        return
    if verdict.reward <= 0:
        ways = ", ".join(wordings(checked.config.task_judge))
        yield warn(
            f"the workflow gave no reward ({verdict.reward:g}) for the right answer, however it was written ({ways})",
            where=where,
            fix="fine if it asks for another form than these; else let reward=... compare the answer with the task's",
        )
        return
    others = [*chain.from_iterable(checked.tasks.values())]
    text = wrong_answer(task, others, "{}")
    sampling = sampling_for(checked.config, "sampled")
    wrong = play(task, dry_setup(checked), ModelScript(text), sampling, seconds=SECONDS).episode
    if wrong.reward is not None and wrong.reward >= verdict.reward:
        yield fail(
            f"the workflow rewards a wrong answer ({text!r}: {wrong.reward:g}) as well as the right one "
            f"({played.script.text!r}: {verdict.reward:g})",
            where=where,
            fix="let reward=... compare the answer with the task's: without a difference nothing is learned",
        )


def _has_passed(checked: CheckedConfig, episode: Episode) -> bool:
    """True if a right answer was judged right, as far as the judge can be asked."""
    verdict = episode.verdict
    if verdict is None or verdict.judged_by in ("doctor", "workflow"):
        return True
    if verdict.passed is not None:
        return verdict.passed
    return verdict.reward > 0


def _error(checked: CheckedConfig, episode: Episode) -> Finding:
    error = episode.error
    assert error is not None
    said = f"{error.kind}: {error.message}" if error.kind != "WorkflowError" else error.message
    place = place_of(error.traceback) or checked.where(KEY)
    fix = how_to_install(error.message) or STEP_THROUGH.format(checked.conf)
    if episode.stop_reason is StopReason.TIMEOUT:
        fix = "find what it waits for: in this run every model answered at once"
        return fail(f"the workflow is {error.message}", where=checked.where(KEY), fix=fix)
    if episode.stop_reason is StopReason.MAX_TURNS:
        fix = "let the agent stop by itself when it has answered, or raise astune.rollout.max_turns"
        return warn(
            "the workflow went on calling the model, though each answer was the right one, until "
            f"astune.rollout.max_turns = {checked.config.rollout.max_turns}",
            where=checked.where("astune.rollout.max_turns"),
            fix=fix,
        )
    if "no such auxiliary model" in error.message:
        fix = "add it under astune.rollout.auxiliary_models: {name: {base_url: ..., model: ...}}, or correct the name"
    elif "expected astune.WorkflowOutput" in error.message:
        fix = "return WorkflowOutput(answer=...) at its end"
    elif episode.stop_reason is StopReason.CONTEXT_OVERFLOW:
        fix = "shorten the system prompt, or raise astune.model.max_model_len"
    elif error.stage == "judge":
        fix = "fix the judge for what the workflow returns, or let the workflow return text"
    elif "asked for permission" in error.message:
        fix = "give the agent **training_defaults() from astune.workflow.agentscope"
    who = "the judge fails on what the workflow returned" if error.stage == "judge" else "the workflow fails"
    return fail(f"{who}: {said}{code_of(error.traceback)}", where=place, fix=fix)


def _find_untrained(episode: Episode, where: str) -> Iterator[Finding]:
    reasons = Counter(turn.excluded for turn in episode.turns if turn.excluded is not None)
    if not reasons:
        return
    listed = ", ".join(f"{number} {reason}" for reason, number in reasons.items())
    fix = (
        "take temperature=0 out of the agent's model options (a temperature below 0.01, top_k=1 and a tiny top_p are "
        "the same): greedy turns are not trained"
        if "greedy" in reasons
        else "give one agent at least tuner.model(name) as it is: without source=... and trainable=False"
    )
    if sum(reasons.values()) == len(episode.turns):
        yield fail(f"no turn of the workflow would be trained ({listed})", where=where, fix=fix)
    elif "greedy" in reasons:
        yield warn(f"some turns would not be trained ({listed})", where=where, fix=fix)


_AGENT = re.compile(r"\bAgent\(")


def tool_to_try(played: DryRun, servers: ToolServers) -> str | None:
    """The first tool that does not look made to hand in the answer; none that would act on this machine, nor one of a
    server that may change something."""
    subjects = [subject.removeprefix(HOST_TOOLS) for subject in played.notes if subject.startswith(HOST_TOOLS)]
    here = {name for subject in subjects for name in subject.split(", ")}
    here |= {name for name, tool in servers.tools.items() if not tool.read_only}
    return next((name for name in played.tools if not ENDS.search(name) and name not in here), None)


def on_fitting_call(checked: CheckedConfig, played: DryRun, tool: str) -> Iterator[Finding]:
    """The outcome of a call of `tool` whose arguments fit its schema."""
    episode = played.episode
    called = f"a call of {tool!r} with made-up arguments that fit it"
    if episode.error is not None and "asked for permission" in episode.error.message:
        yield fail(
            f"{called} does not run the tool: AgentScope 2.x asks for a permission, nobody answers in training, and "
            "every episode ends at its first tool call",
            where=_line_of_the_agent(checked),
            fix="Agent(..., **training_defaults()), from astune.workflow.agentscope",
        )
    elif (use := episode.tools.get(tool)) is not None and use.errors:
        yield ok(f"{called} fails: {use.message!r}; see that it is the arguments, and not the tool")


def _line_of_the_agent(checked: CheckedConfig) -> str:
    """The line of the workflow's file that makes an AgentScope agent first, else the one that names the workflow."""
    file = source_of(checked.config.rollout.agentscope_learn_protocol or "")
    lines = [] if file is None else file.read_text(encoding="utf-8").splitlines()
    found = next((number for number, line in enumerate(lines, start=1) if _AGENT.search(line)), None)
    return checked.where(KEY) if found is None else f"{file}:{found}"


def on_call_without_arguments(checked: CheckedConfig, played: DryRun, tool: str) -> Iterator[Finding]:
    """The workflow's reaction to a call without arguments."""
    episode = played.episode
    called = f"a call of {tool!r} without its arguments, as an untrained model writes them,"
    if episode.stop_reason is StopReason.TIMEOUT or (
        episode.error is not None and episode.stop_reason is StopReason.ERROR and episode.error.stage == "workflow"
    ):
        assert episode.error is not None
        yield warn(
            f"{called} ends the whole episode: {episode.error.kind}: {episode.error.message}"
            f"{code_of(episode.error.traceback)}",
            where=place_of(episode.error.traceback) or checked.where(KEY),
            fix="catch it where the tool is called and hand the error to the model as the tool's result",
        )
    elif episode.stop_reason is StopReason.MAX_TURNS:
        yield warn(
            f"the agent has tools, and after one call of a tool astune.rollout.max_turns = {len(episode.turns)} leaves "
            "it no call to answer",
            where=checked.where("astune.rollout.max_turns"),
            fix="raise it: each tool call is a turn, and so is the answer",
        )
    elif not any(message.get("role") == "tool" for turn in episode.turns for message in turn.messages):
        yield warn(
            f"{called} got no result: the model was not called again with one",
            where=checked.where(KEY),
            fix="send a message with role 'tool' for each call, then call the model again",
        )
    else:
        yield ok(f"{called} is answered with a tool result, and the agent goes on")
