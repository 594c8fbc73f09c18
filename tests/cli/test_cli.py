"""The commands, their exit codes and what they say."""

import asyncio
import errno
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
import sqlalchemy

from astune import __version__
from astune.cli import main
from astune.cli.endings import BAD_INPUT, MEANINGS, what_to_do
from astune.cli.parse import parse
from astune.cli.run import EXIT_CODES
from astune.config.load import load_config
from astune.config.render import default_yaml
from astune.monitor import RunDir
from tests.rows import each_row

ROOT = Path(__file__).parents[2]
FAKE = f"{Path(__file__).parent}/fake_backbone.py:FakeBackbone"
JOB = """\
astune:
  task_reader: {jsonl: {training: {file_path: train.jsonl}}}
  rollout: {agentscope_learn_protocol: 'agent.py:W'}
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path / "job.yaml"


def run(*arguments: str) -> int:
    return main([*arguments, f"--backbone={FAKE}"])


@pytest.mark.parametrize("first", [["--conf", "job.yaml"], ["run", "--conf", "job.yaml"], ["--conf=job.yaml"]])
def test_run_is_the_default_command(job: Path, capsys: pytest.CaptureFixture[str], first: list[str]) -> None:
    assert run(*first, "astune.seed=7", "--resume") == 0
    assert "seed 7 resume True" in capsys.readouterr().out


def test_overrides_may_stand_anywhere_and_the_last_one_counts(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["astune.seed=1", "--conf", "job.yaml", "astune.seed=2", "--backbone", FAKE, "astune.seed=3"]) == 0
    assert "seed 3" in capsys.readouterr().out


@pytest.mark.fault("What a run says", "a run completes, fails, is stopped or is refused", "the exit code tells which")
@pytest.mark.parametrize(
    ("wish", "code", "message"),
    [
        ("training_error", 1, "astune: error: 5 updates in a row were skipped"),
        ("failed", 1, ""),
        ("task_error", 2, "astune: error: train.jsonl:3: not JSON"),
        ("interrupt", 130, "interrupted"),
        ("learned_nothing", 3, "nothing was learned: equal rewards: raise the temperature"),
        ("interrupted", 130, "interrupted after step 3; to go on:\n"),
    ],
)
def test_exit_codes_say_how_it_ended(
    job: Path, capsys: pytest.CaptureFixture[str], wish: str, code: int, message: str
) -> None:
    assert run("--conf", "job.yaml", f"astune.project_name={wish}") == code
    errors = capsys.readouterr().err
    assert message in errors
    assert "Traceback" not in errors


async def test_a_notebook_runs_commands_in_its_own_event_loop(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(asyncio.sleep(0, "the loop goes on"))
    assert run("--conf", "job.yaml", "astune.project_name=loops") == 0
    assert run("--conf", "job.yaml", "astune.project_name=bug") == 1
    assert await task == "the loop goes on" and asyncio.get_event_loop() is asyncio.get_running_loop() is loop
    assert "please report" not in capsys.readouterr().err


@pytest.mark.fault("What a run says", "a bug", "the line of your own code, then the traceback")
def test_an_unexpected_error_shows_its_traceback_and_where_to_look(
    job: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--conf", "job.yaml", "astune.project_name=bug") == 1
    errors = capsys.readouterr().err
    first, second, *_, last = errors.splitlines()
    place = first.partition("in your code: ")[2].partition(" at `")[0]
    assert "fake_backbone.py:" in place and second.startswith("Traceback")
    assert last.startswith("astune: failed with ZeroDivisionError") and last.endswith(f"look first at {place}")


@pytest.mark.fault(
    "What a run says", "the disk is full, a port is taken, Ray or a server is away", "what is wrong with the machine"
)
@each_row(
    ("error", "advice"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "is full: make room"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), "see who owns the file"),
        (OSError(errno.EADDRINUSE, "Address already in use"), "choose another port"),
        (OSError(errno.EMFILE, "Too many open files"), "ulimit -n"),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), "see whether that server runs"),
        (ssl.SSLError(1, "certificate verify failed"), "certificate of the server"),
        (socket.gaierror(-2, "Name or service not known"), "how it is written"),
        (MemoryError(), "astune.rollout.max_concurrent"),
        (httpx.ConnectTimeout("late"), "see whether it runs"),
        (sqlalchemy.exc.OperationalError("select 1", {}, Exception("gone")), "see whether it runs and has room"),
        (type("RayActorError", (type("RayError", (Exception,), {"__module__": "ray.exceptions"}),), {})(), "its logs"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), None),
        (OSError("an error without a number"), None),
        (ValueError("a bug"), None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_of_the_machine_is_told_from_one_of_astune(error: Exception, advice: str | None) -> None:
    found = what_to_do(error)
    assert found is None if advice is None else found is not None and advice in found


def test_nobody_is_asked_to_report_a_full_disk(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/full", "w") as full, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", full)
        assert main(["config", "defaults"]) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("astune: error: OSError: [Errno 28]") and last.endswith("is full: make room")


def test_help_and_the_page_have_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    said = " ".join(capsys.readouterr().out.partition("exit codes:")[2].split())
    assert said == " ".join(f"{code} {meaning}" for code, meaning in MEANINGS.items())
    assert set(MEANINGS) == {0, *EXIT_CODES.values(), BAD_INPUT}
    page = (ROOT / "docs" / "runs.md").read_text(encoding="utf-8")
    assert "".join(f"| {code} | {meaning} |\n" for code, meaning in MEANINGS.items()) in page


def test_after_an_interruption_the_printed_command_resumes(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--conf", "job.yaml", f"--backbone={FAKE}", "astune.project_name=interrupted", "astune.seed='1'"]
    assert main(arguments, program="python launcher.py") == 130
    printed = capsys.readouterr().err.splitlines()[-1].strip()
    expected = f"python launcher.py --conf job.yaml --backbone={FAKE} astune.project_name=interrupted "
    assert printed == expected + "'astune.seed='\"'\"'1'\"'\"'' --resume"
    assert main([*arguments, "--resume"]) == 130
    assert capsys.readouterr().err.count("--resume") == 1


def test_a_run_that_failed_says_which_checkpoint_there_is(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--conf", "job.yaml", "astune.project_name=failed") == 1
    assert "to go on" not in capsys.readouterr().err
    saved = job.parent / "no run folder" / "checkpoints" / "step_000002"
    saved.mkdir(parents=True)
    (saved / "COMPLETE").touch()
    RunDir(job.parent / "no run folder").save_config(load_config(job, backbone=FAKE).config)
    assert run("--conf", "job.yaml", "astune.project_name=failed") == 1
    assert "failed; the last checkpoint is step_000002; to go on:\n" in capsys.readouterr().err


def test_a_backbone_that_cannot_resume_does_not_offer_it(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backbone = FAKE.replace("FakeBackbone", "NoResume")
    assert main(["--conf", "job.yaml", "--backbone", backbone, "astune.project_name=interrupted"]) == 130
    assert "--resume" not in capsys.readouterr().err


def test_settings_the_backbone_ignores_are_named(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--conf", "job.yaml", "astune.trainer.total_steps=3", "astune.rollout.top_k=3") == 0
    assert "not used by fake: astune.rollout.top_k, astune.trainer\n" in capsys.readouterr().out


def test_settings_the_backbone_does_not_know_are_errors(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job.write_text(JOB + "  monitor:\n    trackers: []\n  debug: {num_tasks: 1}\n")
    assert run("--conf", "job.yaml") == 2
    errors = capsys.readouterr().err
    assert "job.yaml:5: astune.monitor.trackers: backbone 'fake' does not support it" in errors
    assert "num_tasks" not in errors, "a default written out asks for nothing"


def test_an_unknown_backbone_lists_those_there_are(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job.write_text(JOB + "  backbone: debgu\n")
    assert main(["--conf", "job.yaml"]) == 2
    errors = capsys.readouterr().err
    assert "job.yaml:4: astune.backbone: unknown backbone 'debgu'. Did you mean 'debug'?" in errors
    assert "built in: debug, local" in errors


@each_row(
    ("arguments", "message"),
    [
        (["--conf"], "expected one argument"),
        (["run"], "the following arguments are required: --conf"),
        (["rnu"], "there is no command 'rnu'. Did you mean 'run'? There are: run, demo,"),
        (["train", "--conf", "x.yaml"], "there is no command 'train'; did you mean: astune run --conf my_agent.yaml"),
        (["debug"], "did you mean: astune run --backbone=debug --conf my_agent.yaml"),
        (["till.yaml"], "'till.yaml' is a file, not a command; to run it: astune --conf till.yaml"),
        (["run", "till.yml"], "name the configuration, as in: astune run --conf till.yml"),
        (["doctor", "till.yaml"], "name the configuration, as in: astune doctor --conf till.yaml"),
        (["run", "--conf"], "--conf: expected one argument; name the configuration, as in: astune run --conf my_agent"),
        (["--config", "x.yaml"], "unknown option --config. Did you mean '--conf'? See astune run --help"),
        (["--conf", "x.yaml", "--resum"], "unknown option --resum. Did you mean '--resume'?"),
        (["tasks", "--conf", "x.yaml"], "expected preview or pools first, as in: astune tasks preview --conf my_agent"),
        (["env", "srve"], "there is no command 'srve'. Did you mean 'serve'? There are: serve, list, check"),
        (["--conf", "x.yaml", "--bakbone=debug"], "unknown option --bakbone. Did you mean '--backbone'?"),
        (["--conf", "x.yaml", "--back=debug"], "unknown option --back."),
        (["--conf", "x.yaml", "-backbone=debug"], "unknown option -backbone. Did you mean '--backbone'?"),
        (["report", "a", "b"], "unexpected argument 'b'"),
        (["config"], "the following arguments are required: ACTION"),
    ],
)
def test_arguments_that_make_no_sense_exit_with_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(arguments, "astune")
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.fault(
    "Input files and settings", "bad input on the command line", "a message without a traceback, and exit code 2"
)
def test_bad_input_is_reported_with_exit_code_2(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--conf", "jb.yaml"]) == 2
    assert "jb.yaml: no such file. Did you mean 'job.yaml'?" in capsys.readouterr().err
    assert main(["--conf", "job.yaml", "astune.sed=1"]) == 2
    assert "command line: astune.sed: unknown key. Did you mean 'astune.seed'?" in capsys.readouterr().err
    assert main(["report", "no/such/run"]) == 2
    assert "no/such/run: there is no such folder" in capsys.readouterr().err


def test_config_show_prints_every_value_with_its_origin(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--conf", "job.yaml", "astune.seed=3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split(":")[0]: line.partition("# ")[2] for line in lines if "# " in line}
    assert rows["  seed"] == "command line"
    assert rows["    agentscope_learn_protocol"] == "job.yaml:3"
    assert rows["    max_turns"] == "default"
    columns = {line.index("  # ") for line in lines if "  # " in line and len(line.split("#")[0].rstrip()) < 50}
    assert len(columns) == 1, "the origins stand in one column"


def test_what_config_show_prints_is_itself_a_configuration(job: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "show", "--conf", "job.yaml", "astune.seed=3"]) == 0
    (job.parent / "shown.yaml").write_text(capsys.readouterr().out)
    assert load_config(job.parent / "shown.yaml").config == load_config(job, ["astune.seed=3"]).config


def test_config_defaults_prints_the_default_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "defaults"]) == 0
    assert capsys.readouterr().out == default_yaml()


@pytest.mark.parametrize("command", [["launcher.py"], ["-m", "astune"]])
def test_help_and_version_work_from_any_directory(tmp_path: Path, command: list[str]) -> None:
    if command == ["launcher.py"]:
        command = [str(ROOT / "launcher.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def output(*arguments: str) -> str:
        call = [sys.executable, *command, *arguments]
        return subprocess.run(call, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout

    assert output("--version") == f"astune {__version__}\n"
    shown = output("--help")
    assert "examples:" in shown and "--backbone=debug" in shown
    assert all(f"\n  {code:<5}" in shown for code in (0, 1, 2, 130))


def test_output_that_nobody_reads_to_its_end_is_no_fault() -> None:
    command = [sys.executable, "-m", "astune", "config", "defaults"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 1
