"""Episodes of a log with their configuration: what is written is read back, and what is broken is named."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.config.render import save_config
from astune.config.schema import Config
from astune.errors import AstuneError, ConfigError
from astune.monitor import EpisodeLog, RunDir
from astune.monitor.episodes import episode_to_row
from astune.recordings.recording import pick_recording, read_recordings
from astune.types import Episode, EpisodeError, Span, StopReason, Task, Timeline, Turn, Verdict, WorkflowOutput
from tests.recordings.played import kept

BEFORE = Path(__file__).parent / "recording.before.json"
"""An episode as debug runs kept it before: one file each, with the configuration in it."""

texts = st.text(max_size=8)
finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
figures = st.dictionaries(texts, finite, max_size=3)
plain_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | finite | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
rows = st.dictionaries(texts, plain_values, max_size=3)
ids = st.lists(st.integers(0, 2**31 - 1), max_size=5)
tasks = st.builds(Task, texts, texts, st.lists(rows, max_size=2).map(tuple), st.none() | texts, metadata=rows)
verdicts = st.builds(Verdict, finite, st.none() | st.booleans(), texts, figures, texts)
errors = st.builds(EpisodeError, st.sampled_from(["workflow", "judge", "policy"]), texts, texts, texts)


@st.composite
def turns(draw):
    output = draw(ids)
    logprobs = [round(-draw(st.floats(0, 30)), 5) for _ in output]
    return Turn(
        draw(st.sampled_from(["a", "b"])),
        draw(ids),
        output,
        logprobs,
        draw(st.integers(0, 9)),
        draw(st.sampled_from(["stop", "length"])),
        draw(st.floats(0, 2)),
        draw(st.none() | st.just("frozen")),
        draw(st.booleans()),
        draw(st.none() | texts),
        draw(st.none() | st.integers(0, 5)),
        tuple(draw(st.lists(rows, max_size=2))),
        tuple(draw(st.lists(rows, max_size=1))),
        draw(rows),
        draw(st.integers(0, 9)),
    )


def timeline_of(number, turn):
    start, stop = len(turn.prompt_ids), len(turn.prompt_ids) + len(turn.output_ids)
    span = Span(number, start, stop, turn.policy_version, turn.temperature, turn.trainable, turn.logprobs)
    return Timeline(turn.agent, [*turn.prompt_ids, *turn.output_ids], (span,), turn.fork)


@st.composite
def episodes(draw):
    made = tuple(draw(st.lists(turns(), max_size=4)))
    with_lines = draw(st.booleans())
    return Episode(
        draw(texts),
        draw(tasks),
        made,
        tuple(timeline_of(number, turn) for number, turn in enumerate(made)) if with_lines else (),
        draw(st.sampled_from(StopReason)),
        draw(st.none() | st.builds(WorkflowOutput, plain_values, st.none() | finite, figures)),
        draw(st.none() | verdicts),
        draw(st.none() | errors),
        {**draw(figures), "seconds": draw(finite)},
        draw(st.integers(0, 99)),
        draw(figures),
        draw(st.dictionaries(st.integers(0, 9), finite, max_size=2)),
    )


def an_episode(seconds=1.5):
    turn = Turn("solver", [1, 2], [3, 4], [-0.5, -0.25], 7, "stop", messages=({"role": "user", "content": "Hi"},))
    verdict = Verdict(1.0, passed=True, reason="equal")
    return Episode(
        "train/t1/0",
        Task("t1", "6 * 7?", answer="42"),
        (turn,),
        (timeline_of(0, turn),),
        StopReason.COMPLETED,
        WorkflowOutput("42"),
        verdict,
        metrics={"seconds": seconds, "turns": 1.0},
    )


@pytest.fixture
def run_dir(tmp_path):
    return RunDir.open(Config.model_validate({"astune": {"runs_dir": str(tmp_path)}}), resume=False)


@settings(max_examples=60)
@given(episode=episodes(), step=st.integers(0, 99), phase=st.sampled_from(["debug", "train", "eval/greedy"]))
def test_what_is_written_is_read_back_and_written_again_byte_for_byte(tmp_path_factory, episode, step, phase):
    config = Config.model_validate({"astune": {"seed": step, "experiment_name": "${x}"}})
    log = kept(tmp_path_factory.mktemp("recording"), config, episode, step=step, phase=phase)
    found = pick_recording(log)
    assert (found.episode, found.step, found.phase, found.config) == (episode, step, phase, config)
    line = json.dumps(episode_to_row(found), ensure_ascii=False) + "\n"
    assert line.encode(errors="backslashreplace") == log.read_bytes()


def test_the_file_of_one_episode_that_older_debug_runs_kept_is_read(tmp_path):
    found = pick_recording(BEFORE)
    assert (found.episode, found.step, found.phase, found.config.astune.seed) == (an_episode(), 3, "debug", 5)
    folder = tmp_path / "demo-debug" / "recordings"
    folder.mkdir(parents=True)
    (folder / "one.json").write_bytes(BEFORE.read_bytes())
    for place in (folder, folder.parent):
        assert [one.origin for one in read_recordings(place)] == [str(folder / "one.json")]


@pytest.mark.fault("Records and checkpoints", "an older recording is cut off anywhere", "an error that names the file")
@settings(max_examples=100)
@given(data=st.data())
def test_a_file_that_is_cut_anywhere_is_an_error_that_names_it(tmp_path_factory, data):
    whole = BEFORE.read_bytes()
    path = tmp_path_factory.mktemp("cut") / "cut.json"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 2))])
    with pytest.raises(AstuneError, match=r"cut\.json"):
        pick_recording(path)


@settings(max_examples=150)
@given(data=st.data(), older=st.booleans())
def test_a_file_with_other_values_is_read_or_is_an_error(tmp_path_factory, data, older):
    value = json.loads(BEFORE.read_text())
    value = value if older else value["episode"]
    node = value["episode"] if older else value
    for _ in range(data.draw(st.integers(0, 3))):
        inner = node[data.draw(st.sampled_from(sorted(node)))] if isinstance(node, dict) else node[0]
        if not isinstance(inner, dict | list) or not inner:
            break
        node = inner
    key = data.draw(st.sampled_from(sorted(node))) if isinstance(node, dict) else 0
    if data.draw(st.booleans()):
        del node[key]
    else:
        node[key] = data.draw(plain_values)
    path = tmp_path_factory.mktemp("odd") / ("odd.json" if older else "odd.jsonl")
    path.write_text(json.dumps(value) + "\n")
    try:
        pick_recording(path)
    except AstuneError as error:
        assert "odd.json" in str(error)


def test_lengths_that_do_not_fit_are_told_with_their_line(run_dir):
    log = kept(run_dir.path, Config(), an_episode())
    log.write_text(log.read_text().replace("[-0.5, -0.25]", "[-0.5]"))
    with pytest.raises(AstuneError, match=r"debug\.jsonl, line 1: not an episode .*span of 2 tokens with 1 logprobs"):
        pick_recording(log)


def test_a_configuration_of_another_version_names_the_key(run_dir):
    log = kept(run_dir.path, Config(), an_episode())
    run_dir.config_path.write_text("astune: {sead: 1}\n")
    with pytest.raises(AstuneError, match=r"config\.yaml: config: astune\.sead"):
        pick_recording(log)


def test_a_path_that_is_not_there_names_the_nearest(run_dir):
    log = kept(run_dir.path, Config(), an_episode())
    with pytest.raises(ConfigError, match=r"no such file or folder. Did you mean 'debug\.jsonl'\?"):
        pick_recording(log.with_name("debugs.jsonl"))
    with pytest.raises(ConfigError, match=r"there is no folder .*nowhere either"):
        pick_recording(log.parent / "nowhere" / "one.jsonl")


def test_a_folder_without_recordings_says_what_was_expected(tmp_path):
    with pytest.raises(ConfigError, match=r"no recorded episodes in it; expected a run's folder, or files as episodes"):
        list(read_recordings(tmp_path))


def test_a_run_gives_its_log_with_its_configuration(run_dir):
    with EpisodeLog(run_dir) as log:
        for number in range(3):
            log.write(replace(an_episode(), episode_id=f"train/t1/{number}"), step=number, phase="train")
    save_config(Config.model_validate({"astune": {"seed": 5}}), run_dir.config_path)
    for path in (run_dir.path, run_dir.episodes_dir, run_dir.episodes_dir / "train.jsonl"):
        found = list(read_recordings(path))
        assert [(one.step, one.episode.episode_id) for one in found] == [(n, f"train/t1/{n}") for n in range(3)]
    assert {one.phase for one in found} == {"train"}
    assert {one.config.astune.seed for one in found} == {5}
    assert [one.origin for one in found] == [f"{path}#{number}" for number in range(3)]


def test_episodes_that_are_kept_beside_code_have_the_configuration_beside_them(run_dir, tmp_path):
    log = kept(run_dir.path, Config.model_validate({"astune": {"seed": 5}}), an_episode())
    folder = tmp_path / "tests" / "recorded"
    folder.mkdir(parents=True)
    log.rename(folder / "good.jsonl")
    run_dir.config_path.rename(folder / "config.yaml")
    assert [(one.config.astune.seed, one.origin) for one in read_recordings(folder)] == [(5, f"{folder}/good.jsonl#0")]


def test_one_of_many_is_picked_by_number_or_id(run_dir):
    episodes = [replace(an_episode(), episode_id=f"train/t1/{number}") for number in range(3)]
    path = kept(run_dir.path, Config(), *episodes)
    for name in ("2", "train/t1/2"):
        assert pick_recording(Path(f"{path}#{name}")).episode.episode_id == "train/t1/2"
    with pytest.raises(ConfigError, match=r"has several episodes; choose one, as .*#0 or .*#train/t1/0"):
        pick_recording(path)
    with pytest.raises(ConfigError, match=r"no episode 'train/t1/9' among the 3 .* Did you mean 'train/t1/"):
        pick_recording(Path(f"{path}#train/t1/9"))
