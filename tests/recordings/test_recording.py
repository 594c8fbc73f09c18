"""An episode as one file: what is written is read back, and what is broken is named with its place."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astune.config.render import save_config
from astune.config.schema import Config
from astune.errors import AstuneError, ConfigError
from astune.monitor import EpisodeLog, RunDir
from astune.recordings.recording import (
    pick_recording,
    read_recordings,
    recording_bytes,
    recording_path,
    write_recording,
)
from astune.types import Episode, EpisodeError, Span, StopReason, Task, Timeline, Turn, Verdict, WorkflowOutput

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
def file(tmp_path):
    path = tmp_path / "recordings" / "one.json"
    write_recording(path, an_episode(), Config(), step=3, phase="train")
    return path


@pytest.fixture
def run_dir(tmp_path):
    return RunDir.open(Config.model_validate({"astune": {"runs_dir": str(tmp_path)}}), resume=False)


@settings(max_examples=60)
@given(episode=episodes(), step=st.integers(0, 99), phase=st.sampled_from(["debug", "train", "eval/greedy"]))
def test_what_is_written_is_read_back_and_written_again_byte_for_byte(tmp_path_factory, episode, step, phase):
    path = tmp_path_factory.mktemp("recording") / "one.json"
    config = Config.model_validate({"astune": {"seed": step, "experiment_name": "${x}"}})
    write_recording(path, episode, config, step=step, phase=phase)
    found = pick_recording(path)
    assert (found.episode, found.step, found.phase, found.config) == (episode, step, phase, config)
    assert recording_bytes(found.episode, config, step=step, phase=phase) == path.read_bytes()


def test_what_is_not_known_stays_not_known(tmp_path):
    turn = Turn("a", [1], [2], [math.nan], 0, "stop")
    write_recording(tmp_path / "one.json", replace(an_episode(), turns=(turn,), timelines=()), Config())
    assert math.isnan(pick_recording(tmp_path / "one.json").episode.turns[0].logprobs[0])


def test_two_runs_of_one_episode_differ_in_the_line_of_timing_alone():
    lines = [recording_bytes(an_episode(seconds), Config()).splitlines() for seconds in (1.5, 2.5)]
    different = [one for one, two in zip(*lines, strict=True) if one != two]
    assert different == [b' "timing": {"seconds": 1.5},']


def test_every_turn_timeline_and_setting_has_a_line_of_its_own(file):
    text = file.read_text()
    assert sum(line.startswith('   {"agent": "solver"') for line in text.splitlines()) == 2
    assert '\n   "rollout": {' in text and json.loads(text)["astune_recording"] == 2


@pytest.mark.fault(
    "Records and checkpoints",
    "writing a recording fails half way",
    "the old file stays whole, and no half file is left",
)
def test_no_half_file_is_left_and_the_old_one_is_replaced(file):
    write_recording(file, an_episode(9.0), Config())
    assert [path.name for path in file.parent.iterdir()] == ["one.json"]
    assert pick_recording(file).episode.metrics["seconds"] == 9.0


@pytest.mark.fault("Records and checkpoints", "a recording is cut off anywhere", "an error that names the file")
@settings(max_examples=300)
@given(data=st.data())
def test_a_file_that_is_cut_anywhere_is_an_error_that_names_it(tmp_path_factory, data):
    whole = recording_bytes(replace(an_episode(), output=WorkflowOutput("東京 ☂")), Config())
    path = tmp_path_factory.mktemp("cut") / "cut.json"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 2))])
    with pytest.raises(AstuneError, match=r"cut\.json"):
        pick_recording(path)


@settings(max_examples=150)
@given(data=st.data())
def test_a_file_with_other_values_is_read_or_is_an_error(tmp_path_factory, data):
    value = json.loads(recording_bytes(an_episode(), Config()))
    node = value["episode"]
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
    path = tmp_path_factory.mktemp("odd") / "odd.json"
    path.write_text(json.dumps(value))
    try:
        pick_recording(path)
    except AstuneError as error:
        assert "odd.json" in str(error)


def changed(file, change):
    value = json.loads(file.read_text())
    change(value)
    file.write_text(json.dumps(value))


def test_what_is_no_json_is_named_with_line_and_column(file):
    lines = file.read_text().splitlines()
    file.write_text("\n".join([*lines[:4], "  oops", *lines[4:]]))
    with pytest.raises(AstuneError, match=r"one\.json, line 5: not JSON \(.* at column 3\)"):
        pick_recording(file)


def test_another_format_says_which_and_what_to_do(file):
    changed(file, lambda value: value.update(astune_recording=3))
    with pytest.raises(AstuneError, match="recorded in format 3; this ASTune reads up to 2: update ASTune"):
        pick_recording(file)


def test_a_recording_of_the_first_format_is_read(file):
    """There each turn says how many of its messages are those of the same agent's turn before."""

    def as_before(value):
        value["astune_recording"] = 1
        value["episode"]["turns"] = [{**turn, "messages_kept": 0} for turn in value["episode"]["turns"]]

    now = pick_recording(file).episode
    changed(file, as_before)
    assert pick_recording(file).episode == now


def test_json_that_is_no_recording_is_told_apart(file):
    file.write_text("[1]")
    with pytest.raises(AstuneError, match="not a recorded episode: there is no key 'astune_recording'"):
        pick_recording(file)


@pytest.mark.parametrize("key", ["timing", "config", "episode"])
def test_a_missing_part_is_named(file, key):
    changed(file, lambda value: value.pop(key))
    with pytest.raises(AstuneError, match=f"the key '{key}' is missing"):
        pick_recording(file)


def test_a_broken_turn_is_named_with_its_line(file):
    text = file.read_text().replace('"finish_reason"', '"finish_raison"')
    file.write_text(text)
    line = next(number for number, line in enumerate(text.split("\n"), start=1) if "finish_raison" in line)
    with pytest.raises(AstuneError, match=rf"one\.json, line {line}: turns\[0\] has no 'finish_reason'"):
        pick_recording(file)


def test_lengths_that_do_not_fit_are_told(file):
    file.write_text(file.read_text().replace("[-0.5, -0.25]", "[-0.5]"))
    with pytest.raises(AstuneError, match=r"not an episode .*span of 2 tokens with 1 logprobs"):
        pick_recording(file)


def test_a_configuration_of_another_version_names_the_key(file):
    changed(file, lambda value: value["config"]["astune"].update(sead=1))
    with pytest.raises(AstuneError, match=r"recorded by ASTune .*config: astune\.sead"):
        pick_recording(file)


def test_a_path_that_is_not_there_names_the_nearest(file):
    with pytest.raises(ConfigError, match=r"no such file or folder. Did you mean 'one\.json'\?"):
        pick_recording(file.with_name("ones.json"))
    with pytest.raises(ConfigError, match=r"there is no folder .*nowhere either"):
        pick_recording(file.parent / "nowhere" / "one.json")


def test_a_folder_without_recordings_says_what_was_expected(tmp_path):
    with pytest.raises(ConfigError, match=r"no recorded episodes in it; expected recordings \(\*\.json\)"):
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


def test_one_of_many_is_picked_by_number_or_id(run_dir):
    with EpisodeLog(run_dir) as log:
        for number in range(3):
            log.write(replace(an_episode(), episode_id=f"train/t1/{number}"), step=number, phase="train")
    path = run_dir.episodes_dir / "train.jsonl"
    for name in ("2", "train/t1/2"):
        assert pick_recording(Path(f"{path}#{name}")).episode.episode_id == "train/t1/2"
    with pytest.raises(ConfigError, match=r"has several episodes; choose one, as .*#0 or .*#train/t1/0"):
        pick_recording(path)
    with pytest.raises(ConfigError, match=r"no episode 'train/t1/9' among the 3 .* Did you mean 'train/t1/"):
        pick_recording(Path(f"{path}#train/t1/9"))


def test_recordings_of_a_run_are_taken_before_its_log(run_dir):
    with EpisodeLog(run_dir) as log:
        log.write(an_episode(), step=0, phase="train")
    path = recording_path(run_dir.path, "debug/t1/0")
    write_recording(path, replace(an_episode(), episode_id="debug/t1/0"), Config())
    assert [one.episode.episode_id for one in read_recordings(run_dir.path)] == ["debug/t1/0"]


@given(one=st.text(max_size=200), two=st.text(max_size=200))
def test_episodes_with_different_names_have_different_safe_files(tmp_path_factory, one, two):
    folder = tmp_path_factory.getbasetemp()
    names = [recording_path(folder, name).name for name in (one, two)]
    assert all(len(name) < 150 and name.isascii() and "/" not in name for name in names)
    if one.replace("/", "_") != two.replace("/", "_"):
        assert names[0] != names[1]
