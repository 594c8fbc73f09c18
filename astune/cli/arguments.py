"""The options of the commands, and what `--help` says. Imports nothing but argparse."""

from __future__ import annotations

import argparse
from pathlib import Path

from astune.cli.online import command as online
from astune.cli.suggesting_parser import SuggestingParser
from astune.support.visible import tell

DESCRIPTION = "Tunes AgentScope agents by reinforcement learning."

EXAMPLES = """\
examples:
  {program} doctor --conf my_agent.yaml               find what would break a long run, before it starts
  {program} --conf my_agent.yaml --backbone=debug     run a task and show everything; nothing is trained
  {program} --conf my_agent.yaml --backbone=debug --step --model human --task task-12
  {program} --conf my_agent.yaml                      train
  {program} --conf my_agent.yaml --resume             go on from the newest checkpoint
  {program} --conf my_agent.yaml astune.trainer.total_steps=10 astune.model.path=Qwen/Qwen3-0.6B
  {program} tasks preview --conf my_agent.yaml        what the reader makes of the data
  {program} demo                                      watch a small agent learn, on this machine, in minutes
  {program} view runs/my_project/my_agent             look at the episodes of a run in the browser
  {program} rubrics --conf rubrics.yaml               learn from a few examples what to judge answers by
  {program} config show --conf my_agent.yaml          every value and where it comes from
  {program} config convert --conf my_agent.yaml --backbone=trinity         the same for Trinity's own configuration

exit codes:
  0    done
  1    the run failed; the doctor or check-tasks found a fault; a replay or two episodes differ
  2    bad input: configuration, plug-in, data set, model, or a package that is not installed
  130  stopped by Ctrl-C, SIGTERM or SIGHUP; what was done is saved, and the command to resume is printed
"""


COMMAND_EXAMPLES = {
    "run": """\
  {program} --conf my_agent.yaml
  {program} --conf my_agent.yaml --backbone=debug --task task-12 --repeat 4 --with-update
  {program} --conf my_agent.yaml --backbone=debug --step --model scripted:answers.yaml
  {program} --conf my_agent.yaml --backbone=debug --step --model http://127.0.0.1:8000/v1#Qwen3-8B
  {program} --conf my_agent.yaml --backbone=debug --model replay:runs/p/n --filter "reward<0.5\"""",
    "replay": """\
  {program} replay runs/p/n-debug                          all recorded episodes of a run
  {program} replay runs/p/n-debug/recordings/debug_t1_0.json --step
  {program} replay runs/p/n/episodes/train.jsonl#17        one of a training run""",
    "rescore": """\
  {program} rescore runs/p/n --judge my_judge.py:judge --filter "phase=train and step>=10"
  {program} rescore runs/p/n --judge MathAnswerAsJudge astune.task_judge.answer_format=boxed --out new.jsonl""",
    "diff": """\
  {program} diff runs/p/a-debug/recordings/debug_t1_0.json runs/p/b-debug/recordings/debug_t1_0.json
  {program} diff runs/p/n/episodes/train.jsonl#3 runs/p/n/episodes/train.jsonl#4""",
    "judge-report": """\
  {program} judge-report --conf my_agent.yaml --examples labelled.jsonl
  {program} judge-report --conf my_agent.yaml --examples labelled.jsonl --judge MathAnswerAsJudge --judge mine.py:judge
  {program} judge-report --conf my_agent.yaml --examples graded.jsonl --pass-label 4 --out judges.html

one of the examples: {{"question": "6 * 12?", "answer": "72", "response": "Surely #### 72", "label": true}}""",
    "eval": """\
  {program} eval --conf my_agent.yaml --checkpoint runs/p/n              the newest checkpoint of a run
  {program} eval --conf my_agent.yaml --checkpoint runs/p/n@best --limit 200 astune.evaluation.attempts=8
  {program} eval --conf my_agent.yaml --checkpoint none runs/p/n@40      the model before training, and after step 40
  {program} eval --conf my_agent.yaml --checkpoint Qwen/Qwen3-0.6B models/mine
  {program} eval --compare runs/p/n-eval/base runs/p/n-eval/n_step_000040

Stopped with Ctrl-C it has lost nothing: the same command goes on.""",
    "doctor": """\
  {program} doctor --conf my_agent.yaml
  {program} doctor --conf my_agent.yaml --offline --json > doctor.json""",
    "check-tasks": """\
  {program} check-tasks --conf my_agent.yaml
  {program} check-tasks --conf my_agent.yaml --split validation astune.task_judge.answer_format=boxed
  {program} check-tasks --conf my_agent.yaml --limit 20 --json > check.json""",
    "tasks": """\
  {program} tasks preview --conf my_agent.yaml
  {program} tasks preview --conf my_agent.yaml --show 9 astune.task_reader.fields.query="{{ask}}\\n{{options:letters}}"
  {program} tasks preview --conf my_agent.yaml --json > tasks.json""",
    "export": """\
  {program} export --run runs/p/n --out my_model             the newest checkpoint, as a folder for transformers or peft
  {program} export --checkpoint runs/p/n/checkpoints/step_000100 --out my_model
  {program} export --checkpoint runs/p/n@best --out my_model        the best by astune.trainer.keep_best
  {program} export --run runs/p/n --out my_model --merged    LoRA: adapter and base as one model
  {program} export --run runs/p/n --out my_model --dtype bfloat16  in half the size, as models are served""",
    "view": """\
  {program} view runs/p/n --open
  {program} view runs/p/n --serve --open                   while the run goes on""",
    "rubrics": """\
  {program} rubrics --conf rubrics.yaml                    learn: from 5 to 100 examples to a rubric in a file
  {program} rubrics --conf rubrics.yaml --keep-edited astune.rubrics.rounds=5
  {program} rubrics show learned.yaml
  {program} rubrics check learned.yaml --conf rubrics.yaml --examples new.jsonl
  {program} rubrics diff learned.yaml other.yaml""",
    "env": """\
  {program} env list                                       what ships
  {program} env serve --env gymnasium:FrozenLake-v1
  {program} env serve --env gymnasium:FrozenLake-v1 --option is_slippery=false --port 0
  {program} env serve --env countdown --env apps --max-instances 256 --ttl 600
  ENV_TOKEN=secret {program} env serve --env my_shop.py:Shop --host 0.0.0.0 --token-variable ENV_TOKEN
  {program} env check my_shop.py:Shop --option customers=3""",
    "online": online.EXAMPLES,
    "tinker-server": """\
  {program} tinker-server --model tiny                     on the CPU, for a first try
  {program} tinker-server --model Qwen/Qwen3-0.6B --dir runs/tinker --port 0
  TINKER_API_KEY=tml-mine {program} tinker-server --model models/qwen --device cuda:1""",
}


def make_parser(program: str) -> argparse.ArgumentParser:
    parser = SuggestingParser(
        prog=program,
        description=DESCRIPTION,
        epilog=EXAMPLES.format(program=program),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_run_and_config(commands)
    report = commands.add_parser("report", help="write report.html of a run anew")
    report.add_argument("run_dir", type=Path, metavar="RUN", help="folder of the run, as runs/project/name")
    _add_export(commands.add_parser("export", help="write the model of a checkpoint, or its adapter, for others"))
    _add_view(commands.add_parser("view", help="look at the episodes of a run: one page, no network"))
    _add_eval(commands.add_parser("eval", help="play the held-out tasks with a checkpoint, or compare two"))
    _add_doctor(commands.add_parser("doctor", help="find what would break a run before it starts"))
    _add_tasks(commands.add_parser("tasks", help="look at the tasks as the reader makes them"))
    _add_check_tasks(commands.add_parser("check-tasks", help="prove that the judge knows right from wrong, by task"))
    _add_episode_commands(commands)
    _add_judge_report(commands.add_parser("judge-report", help="how well judges agree with answers you have labelled"))
    _add_rubrics(commands.add_parser("rubrics", help="learn from a few examples what to judge answers by"))
    _add_tinker_server(commands.add_parser("tinker-server", help="serve a model to clients of the tinker SDK"))
    _add_env(commands.add_parser("env", help="serve environments that agents act in"))
    online.add_online(commands.add_parser("online", help="serve a deployed agent, and train from what its users say"))
    for name, examples in COMMAND_EXAMPLES.items():
        commands.choices[name].epilog = "examples:\n" + examples.format(program=program)
        commands.choices[name].formatter_class = argparse.RawDescriptionHelpFormatter
    return parser


def _add_run_and_config(commands: argparse._SubParsersAction[SuggestingParser]) -> None:
    run = commands.add_parser("run", help="run a configuration (the default: `run` may be left out)")
    run.add_argument("--conf", type=Path, required=True, metavar="X.yaml", help="the configuration")
    demo = commands.add_parser("demo", help="train the small agent of tutorial/math_agent")
    config = commands.add_parser("config", help="look at a configuration")
    actions = config.add_subparsers(dest="action", required=True, metavar="ACTION")
    show = actions.add_parser("show", help="every value and where it comes from")
    show.add_argument("--conf", type=Path, required=True, metavar="X.yaml", help="the configuration")
    convert = actions.add_parser("convert", help="what another program gets, as --backbone=trinity or verl runs one")
    convert.add_argument("--conf", type=Path, required=True, metavar="X.yaml", help="the configuration")
    actions.add_parser("defaults", help="every key, its default and its meaning")
    for command in (run, demo):
        _add_debug_options(command)
        command.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
        command.add_argument(
            "--allow-changes",
            action="store_true",
            help="with --resume: go on though options are not those that the run began with",
        )
    for command in (run, demo, show, convert):
        names = "'debug', 'local', 'trinity', 'verl' or a plug-in"
        command.add_argument("--backbone", help=f"{names}; sets astune.backbone")
        command.add_argument(
            "overrides", nargs="*", metavar="key=value", help="replaces a value, as astune.trainer.total_steps=10"
        )


def _add_debug_options(command: argparse.ArgumentParser) -> None:
    debug = command.add_argument_group("with --backbone=debug")
    debug.add_argument(
        "--model",
        help="what answers: 'human', 'scripted:FILE', 'replay:FILE', 'endpoints', an address of a chat API "
        "(http://...#name), or as with any backbone 'tiny', a folder or a hub id",
    )
    debug.add_argument("--task", action="append", dest="tasks", metavar="ID", help="this task; may be repeated")
    debug.add_argument("--index", type=int, metavar="N", help="number of the first task, from 0")
    debug.add_argument("--split", choices=("training", "validation"), help="where the tasks come from")
    debug.add_argument("--limit", type=int, dest="num_tasks", metavar="N", help="how many tasks")
    debug.add_argument("--repeat", type=int, dest="num_repeat", metavar="N", help="attempts at each: a group")
    debug.add_argument("--filter", metavar="F", help="with --model replay: which episodes, as 'reward<0.5' or 'error'")
    _add_step_options(debug)
    debug.add_argument(
        "--with-update", action="store_true", default=None, help="show what one optimizer step would change"
    )


def _add_step_options(group: argparse._ActionsContainer) -> None:
    group.add_argument("--step", action="store_true", default=None, help="stop at every call, tool result and verdict")
    group.add_argument("--commands", metavar="FILE", help="commands for the stops, one in a line; implies --step")


def _add_view(command: argparse.ArgumentParser) -> None:
    command.add_argument("run_dir", type=Path, metavar="RUN", help="folder of the run, as runs/project/name")
    command.add_argument("--out", type=Path, metavar="FILE", help="where to write the page; default: RUN/view.html")
    command.add_argument("--open", action="store_true", help="open it in the browser")
    command.add_argument("--serve", action="store_true", help="serve it on this machine; a reload shows what is new")
    command.add_argument("--port", type=int, default=8265, help="with --serve; default: 8265")


def _add_eval(command: argparse.ArgumentParser) -> None:
    command.description = (
        "Plays the held-out tasks of a configuration, astune.evaluation.sets too, and tells each figure with its "
        "interval and its number of tasks. Exits with 1 if nothing could be judged."
    )
    command.add_argument("--conf", type=Path, metavar="X.yaml", help="the configuration, with --checkpoint")
    chosen = command.add_mutually_exclusive_group(required=True)
    chosen.add_argument(
        "--checkpoint",
        nargs="+",
        dest="checkpoints",
        metavar="C",
        help="one or two to compare: a run, RUN@best, RUN@STEP, a checkpoint's folder, a model's folder or hub id, or "
        "none: the model of the configuration",
    )
    chosen.add_argument(
        "--compare", nargs=2, type=Path, metavar=("A", "B"), help="folders that earlier evaluations were written into"
    )
    command.add_argument("--limit", type=int, metavar="N", help="the first N tasks of each set; default: every task")
    command.add_argument("--out", type=Path, metavar="FOLDER", help="default: beside the runs, as runs/p/n-eval/base")
    command.add_argument("--backbone", help="local, or verl: on its servers; sets astune.backbone")
    command.add_argument("--engine", metavar="E", help="one of your own in the place of both, 'my_engine.py:load'")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("overrides", nargs="*", metavar="key=value", help="replaces a value")


def _add_doctor(command: argparse.ArgumentParser) -> None:
    command.add_argument("--conf", type=Path, required=True, metavar="X.yaml", help="the configuration")
    command.add_argument("--backbone", help="as for a run; sets astune.backbone")
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument("--offline", action="store_true", help="leave out what needs the network")
    command.add_argument("overrides", nargs="*", metavar="key=value", help="replaces a value")


def _add_tasks(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    preview = actions.add_parser("preview", help="counts, the first tasks, lengths, and what is wrong with the data")
    preview.description = "Exits with 1 if a run would stop at something in the data."
    preview.add_argument("--conf", type=Path, required=True, metavar="X.yaml", help="the configuration")
    preview.add_argument("--show", type=int, default=3, metavar="N", help="tasks of each split to show; default: 3")
    preview.add_argument("--json", action="store_true", help="print JSON, with all problems")
    preview.add_argument("overrides", nargs="*", metavar="key=value", help="replaces a value")


def _add_check_tasks(command: argparse.ArgumentParser) -> None:
    command.description = (
        "For every task, without a model: the reference answer must count as right; an empty answer, "
        '"I don\'t know", the question repeated and all options at once must not. Exits with 1 if that fails.'
    )
    command.add_argument("--conf", type=Path, required=True, metavar="X.yaml", help="the configuration")
    command.add_argument(
        "--split", choices=("training", "validation", "all"), default="all", help="which tasks; default: all"
    )
    command.add_argument("--limit", type=int, metavar="N", help="the first N of each split; default: every task")
    command.add_argument("--json", action="store_true", help="print JSON, with all that failed")
    command.add_argument("overrides", nargs="*", metavar="key=value", help="replaces a value")


def _add_episode_commands(commands: argparse._SubParsersAction[SuggestingParser]) -> None:
    replay = commands.add_parser("replay", help="run recorded episodes again, with the recorded answers of the model")
    rescore = commands.add_parser("rescore", help="judge recorded episodes with another judge, without running them")
    for command in (replay, rescore):
        command.add_argument("files", nargs="+", metavar="FILE", help="recorded episodes, or a run's folder; key=value")
        command.add_argument("--conf", type=Path, metavar="X.yaml", help="default: the configuration in the recording")
        command.add_argument("--filter", metavar="F", help="which episodes, as 'reward<0.5' or 'error=judge'")
    _add_step_options(replay)
    rescore.add_argument("--judge", required=True, metavar="J", help="as astune.task_judge.judge_protocol names it")
    rescore.add_argument("--out", type=Path, metavar="FILE", help="write the episodes with their new verdicts")
    diff = commands.add_parser("diff", help="the first point where two recorded episodes part")
    diff.add_argument("first", type=Path, metavar="A")
    diff.add_argument("second", type=Path, metavar="B")


def _add_judge_report(command: argparse.ArgumentParser) -> None:
    command.add_argument("--conf", type=Path, required=True, metavar="X.yaml", help="the configuration")
    command.add_argument(
        "--examples", type=Path, required=True, metavar="FILE", help="JSON Lines: a task, `response` and `label` each"
    )
    command.add_argument(
        "--judge",
        action="append",
        dest="judges",
        default=[],
        metavar="J",
        help="as astune.task_judge.judge_protocol names it; may be repeated; default: the configured one",
    )
    command.add_argument("--response-field", default="response", metavar="KEY", help="of the answer to judge")
    command.add_argument("--label-field", metavar="KEY", help="of the label; default: label or is_correct")
    command.add_argument(
        "--pass-label", type=float, metavar="X", help="label from which an answer is right; default: the middle"
    )
    command.add_argument(
        "--pass-reward",
        type=float,
        default=0.5,
        metavar="X",
        help="reward from which an answer passes, where the verdict does not say whether it does; default: 0.5",
    )
    command.add_argument("--out", type=Path, metavar="FILE", help="write the report as a page, too")
    command.add_argument("--json", action="store_true", help="print JSON, with all disagreements")
    command.add_argument("overrides", nargs="*", metavar="key=value", help="replaces a value")


def _add_rubrics(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    learn = actions.add_parser("learn", help="learn a rubric (the default: `learn` may be left out)")
    learn.add_argument("--conf", type=Path, required=True, metavar="X.yaml", help="with astune.rubrics and the models")
    learn.add_argument(
        "--keep-edited", action="store_true", help="keep what was edited by hand in the file that is overwritten"
    )
    show = actions.add_parser("show", help="criteria, test report and origin of a rubric")
    check = actions.add_parser("check", help="whether a rubric is valid, what was edited, how it judges examples")
    check.add_argument("--conf", type=Path, metavar="X.yaml", help="judge examples with the models that it names")
    check.add_argument("--examples", type=Path, metavar="FILE", help="default: astune.rubrics.examples")
    for action in (show, check):
        action.add_argument("file", type=Path, metavar="RUBRIC")
    diff = actions.add_parser("diff", help="what differs between two rubrics")
    diff.add_argument("first", type=Path, metavar="A")
    diff.add_argument("second", type=Path, metavar="B")
    for action in (learn, check):
        action.add_argument("overrides", nargs="*", metavar="key=value", help="replaces a value, as astune.seed=1")


def _add_export(command: argparse.ArgumentParser) -> None:
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument("--run", type=Path, metavar="RUN", help="folder of a run, whose newest checkpoint it is")
    source.add_argument("--checkpoint", type=Path, metavar="FOLDER", help="folder of a checkpoint")
    command.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new folder")
    command.add_argument(
        "--merged", action="store_true", help="of a run with LoRA, write the whole model; without, only the adapter"
    )
    command.add_argument(
        "--dtype",
        choices=("float32", "bfloat16"),
        help="precision of the model; default: that of the checkpoint, with --merged that of the base",
    )


def _add_tinker_server(command: argparse.ArgumentParser) -> None:
    command.add_argument("--model", required=True, metavar="M", help="'tiny', a folder or a hub id")
    command.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, which only this machine reaches")
    command.add_argument("--port", type=int, default=10610, help="default: 10610; 0 takes a free one")
    command.add_argument(
        "--dir", type=Path, default=Path("runs/tinker"), metavar="FOLDER", help="of checkpoints; default: runs/tinker"
    )
    command.add_argument("--device", default="auto", help="'auto' (CUDA if there is one), 'cpu', 'cuda' or 'cuda:N'")
    command.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16"))
    command.add_argument("--slots", type=int, default=64, metavar="N", help="answers sampled side by side; default: 64")


def _add_env(command: argparse.ArgumentParser) -> None:
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION")
    serve = actions.add_parser("serve", help="serve environments over HTTP until Ctrl-C")
    serve.add_argument(
        "--env",
        action="append",
        dest="specs",
        required=True,
        metavar="SPEC",
        help="which, as `astune env list` has them, or your own class as my_file.py:MyClass; may be repeated",
    )
    serve.add_argument("--host", default="127.0.0.1", help="default: 127.0.0.1, which only this machine reaches")
    serve.add_argument("--port", type=int, default=8080, help="default: 8080; 0 takes a free one")
    serve.add_argument(
        "--max-instances", type=int, default=512, metavar="N", help="alive at the same time; default: 512"
    )
    serve.add_argument(
        "--ttl", type=float, default=1800.0, metavar="S", help="seconds that an instance may lie unused; default: 1800"
    )
    serve.add_argument("--token-variable", metavar="NAME", help="environment variable with the token to ask for")
    serve.add_argument(
        "--workers", type=int, default=32, metavar="N", help="calls worked on at the same time; default: 32"
    )
    actions.add_parser("list", help="the environments that ship")
    check = actions.add_parser("check", help="play an environment's class and say what breaks the contract")
    check.add_argument("spec", metavar="SPEC", help="as my_file.py:MyClass")
    check.add_argument("--split", default="train", help="whose tasks are played; default: train")
    check.add_argument("--seed", type=int, default=0, metavar="N", help="another one plays other actions")
    for action in (serve, check):
        action.add_argument(
            "--option",
            action="append",
            dest="options",
            default=[],
            metavar="KEY=VALUE",
            help="of the environment, the value as in YAML; may be repeated",
        )


class _Version(argparse.Action):
    def __init__(self, option_strings: list[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show the version and exit")

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from astune import __version__

        tell(f"astune {__version__}")
        parser.exit()
