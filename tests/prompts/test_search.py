"""A whole search in a world where it is known what a prompt has to say."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest

import astune
from astune import Task, Tuner, WorkflowOutput
from astune.cli import main
from astune.errors import ConfigError, PluginError, TaskError
from astune.monitor.episodes import read_episodes
from astune.prompts.result import PromptSearch
from tests.prompts import world

FILES = ("candidates.jsonl", "result.json", "prompts.yaml")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def search(workflow: Any = world.solve, reflector: Any = world.reflect, count: int = 24, **keys: Any) -> PromptSearch:
    settings = {"engine": world.load_engine, "rollout.max_tokens": 64, "patience": 2, "monitor.progress": "off"} | keys
    return astune.search_prompts(workflow, tasks=world.tasks(count), judge=world.judge, reflector=reflector, **settings)


def rows(found: PromptSearch, name: str = "candidates.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (found.folder / name).read_text().splitlines()]


def test_a_search_finds_what_the_prompt_has_to_say_and_proves_it_on_tasks_that_it_never_saw() -> None:
    found = search()
    assert found.gained
    assert all(rule in found.prompts["system"] for rule in world.RULES.values())
    assert astune.load_prompts(found.folder) == found.prompts
    kept = rows(found)
    assert [(row["candidate"], row["parents"], row["fate"]) for row in kept] == [
        ("c0", [], "first"),
        ("c1", ["c0"], "kept"),
        ("c2", ["c1"], "kept"),
    ]
    assert [row["mean"] for row in kept] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert kept[1]["changed"] == ["system"] and len(kept[1]["scores"]) == 16 and kept[1]["calls"] == 32
    seen = {
        record.episode.task.task_id for path in found.folder.glob("episodes/prompt_*") for record in read_episodes(path)
    }
    tested = {record.episode.task.task_id for record in read_episodes(found.folder / "episodes" / "eval_c2.jsonl")}
    assert len(seen) == 16 and len(tested) == 8 and not seen & tested
    assert found.reward is not None and found.reward.test.p == pytest.approx(2 / 2**8)
    assert found.tested["c2"].prompt_tokens > found.tested["c0"].prompt_tokens


@pytest.mark.parametrize("kept", [0.0, 0.3, 0.8])
def test_a_search_that_was_killed_goes_on_to_the_same_result(kept: float) -> None:
    whole = search()
    before = {name: (whole.folder / name).read_text() for name in FILES}
    for name in FILES:
        (whole.folder / name).unlink()
    later = [whole.folder / "episodes" / f"{name}.jsonl" for name in ("prompt_c1", "prompt_c2", "eval_c0", "eval_c2")]
    for path in (later[0], whole.folder / "reflections.jsonl"):
        path.write_bytes(path.read_bytes()[: int(kept * path.stat().st_size)])
    for path in later[1:]:
        path.unlink()
    again = search(resume=True)
    assert again == whole
    assert {name: (again.folder / name).read_text() for name in FILES} == before


def test_ctrl_c_keeps_what_was_played() -> None:
    played = 0

    async def solve(task: Task, tuner: Tuner) -> WorkflowOutput:
        nonlocal played
        played += 1
        if played == 40:
            signal.raise_signal(signal.SIGINT)
        return await world.solve(task, tuner)

    with pytest.raises(KeyboardInterrupt):
        search(solve, **{"rollout.max_concurrent": 1})
    again = search(solve, resume=True, **{"rollout.max_concurrent": 1})
    assert again.gained and again.episodes == 96
    assert played == 96 + 32 + 2  # the two attempts of the task under way are made again


def test_a_search_that_is_done_is_told_again_and_nothing_is_played() -> None:
    first = search()
    assert search(resume=True, engine=world.no_engine) == first


def test_texts_that_quote_a_task_are_dropped_and_junk_is_counted() -> None:
    quoting = search(reflector=world.quote, rounds=2)
    assert not quoting.gained and quoting.candidate == "c0" and quoting.dropped == 2
    dropped = [row for row in rows(quoting) if row["fate"] == "dropped"]
    assert dropped and all("it gives the answer to task" in row["why"] for row in dropped)
    junk = search(reflector=world.junk, rounds=2)
    assert not junk.gained and junk.junk == 6 and "expected a text" in rows(junk, "reflections.jsonl")[0]["wrong"]
    broken = search(reflector=lambda request: f"{request.text} \ud800", rounds=2)  # as a model's JSON may have it
    assert not broken.gained and broken.junk == 6


def test_a_reflector_that_raises_ends_the_search_with_its_line_and_what_was_played_is_kept() -> None:
    with pytest.raises(PluginError, match=r"the reflector failed at .*world\.py.*no idea"):
        search(reflector=world.fail)
    assert search(resume=True, engine=world.load_engine, reflector=world.reflect, allow_changes=True).gained


def test_budgets_end_a_search_with_a_stated_result() -> None:
    found = search(max_episodes=40)
    assert found.ended == "astune.prompts.max_episodes: 38 of 40 episodes, and it needs 26"
    assert found.candidate == "c0" and not found.gained
    assert search(max_calls=1).ended == "astune.prompts.max_calls: all 1 calls of the models that reflect are made"


def test_a_placeholder_is_kept_by_every_candidate() -> None:
    found = search(world.solve_in_city, world.lose_placeholder, rounds=1)
    assert [row["why"] for row in rows(found)[1:]] == ["it has lost {city}"] * 2


def test_several_texts_are_tuned_by_turns_the_description_of_a_tool_among_them() -> None:
    found = search(world.solve_with_tool, world.reflect_tool, tune=["system", "tool:shout"], rounds=4)
    assert found.first == {"system": "You repeat words.", "tool:shout": "Says it loudly."}
    assert {name for row in rows(found) for name in row["changed"]} == {"system", "tool:shout"}


def test_a_parameter_of_the_workflow_is_a_text() -> None:
    found = search(world.repeat, prompts={"system_prompt": "You repeat words."})
    assert found.gained and set(found.prompts) == {"system_prompt"}
    with pytest.raises(ConfigError, match=r"takes system_prompt, and nothing gives it"):
        search(world.repeat)


def test_bad_input_is_refused_with_what_to_do(folder: Path) -> None:
    (folder / "town.md").write_text("You serve in {town}.")
    with pytest.raises(ConfigError, match=r"never asks for a text that could be tuned"):
        search(world.silent)
    with pytest.raises(ConfigError, match=r"never asks for 'sistem'\. Did you mean 'system'\?"):
        search(tune=["sistem"])
    with pytest.raises(ConfigError, match=r"has the placeholder \{town\}, and nothing fills it"):
        search(world.solve_in_city, prompts={"system": "You serve in {town}."})
    with pytest.raises(ConfigError, match=r"'system_prompt' has the placeholder \{town\}, and nothing fills it"):
        search(world.repeat, files={"system_prompt": "town.md"})
    with pytest.raises(TaskError, match=r"leaves 8 to search on and 4 to test on; expected 3 and 6"):
        search(count=12)
    with pytest.raises(ConfigError, match=r"astune\.prompts\.reflection\.models: not set"):
        search(reflector=None)
    with pytest.raises(ConfigError, match=r"max_episodes: got 10, and the first texts alone take 32"):
        search(max_episodes=10)
    with pytest.raises(ConfigError, match=r"astune\.rollout\.workers"):
        search("tests.prompts.world:solve", **{"rollout.workers": 2})


def test_the_command_says_what_it_found_and_ends_with_3_where_that_is_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in world.tasks()))
    (folder / "parrot.yaml").write_text(
        "astune:\n"
        "  task_reader: {type: jsonl, jsonl: {training: {file_path: tasks.jsonl}}}\n"
        "  rollout: {agentscope_learn_protocol: 'tests.prompts.world:solve', max_tokens: 64}\n"
        "  task_judge: {judge_protocol: 'tests.prompts.world:judge'}\n"
        "  prompts: {reflector: 'tests.prompts.world:reflect', patience: 2, out: best.yaml}\n"
        "  monitor: {progress: 'off'}\n"
    )
    command = ["prompt", "--conf", "parrot.yaml", "--engine", "tests.prompts.world:load_engine"]
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "ended: 2 rounds in a row (astune.prompts.patience) found nothing better" in said
    assert "3 candidates in 96 episodes: 96 calls, 4,824 tokens; " in said
    assert "--- system ---\nYou repeat words. Write in small letters. Put the answer in brackets." in said
    best = astune.load_prompts("best.yaml")
    assert main([*command, "--json", "astune.prompts.from=best.yaml"]) == 3
    told = json.loads(capsys.readouterr().out)
    assert not told["gained"] and told["candidate"] == "c0" and told["prompts"] == best and told["held_out"] == []
