"""What `astune view` writes, without a browser."""

import asyncio
import base64
import gzip
import json
import re
import shutil
import signal
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.algorithm import ADVANTAGES, to_samples
from astune.algorithm.advantage import dr_grpo, grpo
from astune.cli.view import view
from astune.config.schema import Config
from astune.context_tracker.prompt.chat_format import ChatFormat
from astune.errors import ConfigError
from astune.monitor import EpisodeLog, EpisodeRecord, MetricsLog, RunDir, read_episodes
from astune.support.resources import tiny_model_dir
from astune.testing import write_test_model_dir
from astune.types import Episode, EpisodeError, Group, Span, StopReason, Task, Timeline, Turn, Verdict
from astune.viewer import page as view_module
from astune.viewer.episode_data import TokenTexts, episode_data
from astune.viewer.page import SCRIPTS, write_view
from astune.viewer.run_index import index_run, read_episode
from astune.viewer.serve import view_app
from astune.viewer.step_credit import STAND_IN, Credited, Estimator, credit_step

GOLDEN = Path(__file__).parents[1] / "agents" / "golden"
HOSTILE = '</script><img src=x onerror="alert(1)"><!--<script>\u2028'


def unpack(text):
    return json.loads(gzip.decompress(base64.b64decode(text)))


def parts(page):
    """The head of a page, and its blocks in order."""
    text = page.read_text("utf-8")
    found = re.findall(r'<script type="text/plain" id="([a-z]+)[-0-9]*">([^<]*)</script>', text)
    return unpack(found[0][1]), [unpack(packed) for name, packed in found if name == "block"]


def empty_run(folder, **keys):
    return RunDir.open(Config.model_validate({"astune": {"runs_dir": str(folder), **keys}}), resume=False)


def golden_run(folder):
    """The recorded episodes of AgentScope agents as a run."""
    run = empty_run(folder, model={"path": str(write_test_model_dir(folder / "model"))})
    run.episodes_dir.mkdir()
    rows = [
        json.dumps(json.loads(path.read_text("utf-8")), ensure_ascii=False) for path in sorted(GOLDEN.glob("*/*.json"))
    ]
    (run.episodes_dir / "train.jsonl").write_text("\n".join(rows) + "\n", "utf-8")
    return run


def whole_lanes(episode):
    """Ids of all rows, put together as the page does."""
    ids = []
    for lane in episode["lanes"]:
        start = [] if lane["from"] is None else ids[lane["from"][0]][: lane["from"][1]]
        ids.append(start + lane["ids"])
    return ids


def small_episode(reward, task="t", ids=(1, 2, 3), excluded=None):
    turn = Turn("solver", ids[:1], ids[1:], (-0.5,) * (len(ids) - 1), 0, "stop", excluded=excluded)
    span = Span(0, 1, len(ids), 0, 1.0, excluded is None, (-0.5,) * (len(ids) - 1))
    verdict = None if reward is None else Verdict(reward)
    return Episode(
        "e", Task(task, "?"), (turn,), (Timeline("solver", ids, (span,)),), StopReason.COMPLETED, None, verdict
    )


def test_the_page_holds_every_episode_with_its_exact_tokens_and_logprobs(make_run):
    run = make_run(steps=2, held_out=6)
    head, blocks = parts(write_view(run.path, run.path / "view.html"))
    held = {key: episode for block in blocks for key, episode in block["episodes"].items()}
    read = {
        f"{record.phase}:{line}": record.episode
        for path in run.episodes_dir.glob("*.jsonl")
        for line, record in enumerate(read_episodes(path), start=1)
    }
    assert len(held) == len(head["episodes"]["line"]) == len(read) == 2 * 16 + 4 * 6
    for key, episode in read.items():
        assert whole_lanes(held[key]) == [list(line.token_ids) for line in episode.timelines]
        for lane, line in zip(held[key]["lanes"], episode.timelines, strict=True):
            logprobs = [value for span in line.spans for value in span.logprobs]
            assert [value for span in lane["spans"] for value in span["logprobs"]] == pytest.approx(logprobs, abs=1e-4)


def test_a_row_of_the_table_says_where_the_episode_stands_and_which_block_holds_it(make_run):
    run = make_run(steps=3, held_out=4)
    head, blocks = parts(write_view(run.path, run.path / "view.html"))
    columns = head["episodes"]
    lines = {path.name: path.read_text("utf-8").splitlines() for path in run.episodes_dir.glob("*.jsonl")}
    for i, line in enumerate(columns["line"]):
        phase = head["phases"][columns["phase"][i]]
        row = json.loads(lines[head["lines"][phase]][line - 1])
        assert row["episode_id"] == columns["id"][i] and row["reward"] == columns["reward"][i]
        assert head["tasks"][columns["task"][i]][0] == row["task_id"]
        assert f"{phase}:{line}" in blocks[columns["block"][i]]["episodes"]
        assert columns["sampled"][i] == row["metrics"]["output_tokens"]


def test_a_point_of_a_curve_names_its_line_of_the_metrics(make_run):
    run = make_run(steps=3, held_out=4)
    head, _ = parts(write_view(run.path, run.path / "view.html"))
    lines = [json.loads(line) for line in run.metrics_path.read_text("utf-8").splitlines()]
    assert len(head["curves"]["reward/mean"]) == 3
    for key, points in head["curves"].items():
        assert all(lines[line - 1]["step"] == step and lines[line - 1][key] == value for step, value, line in points)


def test_texts_of_tokens_read_as_the_tokenizer_decodes_them(make_run):
    run = make_run(steps=1, held_out=4)
    _, blocks = parts(write_view(run.path, run.path / "view.html"))
    chat_format = ChatFormat.load(tiny_model_dir())
    for block in blocks:
        for episode in block["episodes"].values():
            for lane, ids in zip(episode["lanes"], whole_lanes(episode), strict=True):
                odd = dict(lane["odd"])
                texts = [odd.get(place, block["texts"][str(token)]) for place, token in enumerate(ids)]
                assert texts == chat_format.pieces(ids)


@given(st.text(max_size=40), st.integers(0, 5))
def test_looked_up_token_texts_are_those_that_decoding_gives(text, cut):
    chat_format = ChatFormat.load(tiny_model_dir())
    ids = tuple(chat_format.encode(text)[cut:])
    known, odd = TokenTexts(chat_format.pieces).of(ids)
    assert [dict(odd).get(place, known[token]) for place, token in enumerate(ids)] == chat_format.pieces(ids)


def test_a_tokenizer_that_writes_no_space_before_the_first_token_is_followed():
    def pieces(ids):
        texts = [f" {token}" for token in ids]
        return [texts[0][1:], *texts[1:]] if texts else []

    known, odd = TokenTexts(pieces).of((7, 8, 7))
    assert known == {7: " 7", 8: " 8"} and odd == [(0, "7")]


def test_advantages_and_weights_are_those_of_the_training_step(make_run):
    run = make_run(steps=2, held_out=4)
    episodes = [record.episode for record in read_episodes(run.episodes_dir / "train.jsonl") if record.step == 2]
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        groups.setdefault(episode.task.task_id, []).append(episode)
    samples, _ = to_samples([Group(group[0].task, tuple(group)) for group in groups.values()], grpo)
    expected = {id(sample.timeline): sample for sample in samples}
    assert expected
    for episode, credited in zip(episodes, credit_step(episodes, Estimator.of({})), strict=True):
        for number, line in enumerate(episode.timelines):
            if id(line) in expected:
                assert tuple(credited.advantages[number]) == expected[id(line)].advantages
                assert tuple(credited.weights[number]) == expected[id(line)].weights
            else:
                assert not any(credited.weights[number])


def test_what_is_not_trained_says_why():
    episodes = [small_episode(1.0, "equal"), small_episode(1.0, "equal"), small_episode(None, "gone")]
    episodes += [small_episode(0.0, "differ"), small_episode(1.0, "differ")]
    found = credit_step(episodes, Estimator.of({}))
    assert [credited.left_out for credited in found] == ["no_signal", "no_signal", "unjudged", None, None]
    assert [credited.outcome for credited in found] == [0.0, 0.0, None, -1.0, 1.0]


def test_a_reward_that_was_no_number_is_shown_as_not_judged():
    broken = replace(small_episode(0.0, "differ"), verdict=Verdict(float("nan")))
    found = credit_step([broken, small_episode(0.0, "differ"), small_episode(1.0, "differ")], Estimator.of({}))
    assert [credited.left_out for credited in found] == ["unjudged", None, None]


def test_an_advantage_plug_in_is_not_run_and_the_page_says_what_stands_for_it():
    estimator = Estimator.of({"astune.algorithm.advantage": "my_module:advantage"})
    assert estimator.advantage is dr_grpo and "my_module:advantage" in estimator.name
    other = [name for name in ADVANTAGES if Estimator.of({"astune.algorithm.advantage": name}).name != name]
    assert other == list(STAND_IN)
    ruled = Estimator.of({"astune.algorithm.balance": True})
    assert ruled.name == "grpo, of rewards before the rules over groups"


def test_recorded_agents_with_forks_keep_shared_tokens_once(tmp_path):
    run = golden_run(tmp_path)
    head, blocks = parts(write_view(run.path, tmp_path / "view.html"))
    held = {key: episode for block in blocks for key, episode in block["episodes"].items()}
    entries = index_run(run).entries
    assert len(entries) == len(held) > 12 and len(head["agents"]) > 3
    shared = 0
    for entry in entries:
        episode, data = read_episode(entry).episode, held[f"train:{entry.line}"]
        assert whole_lanes(data) == [list(line.token_ids) for line in episode.timelines]
        assert [turn["agent"] for turn in data["turns"]] == [turn.agent for turn in episode.turns]
        shared += sum(lane["from"][1] for lane in data["lanes"] if lane["from"])
        for lane in data["lanes"]:  # every turn's own tokens are in the lane that sampled them
            start = lane["from"][1] if lane["from"] else 0
            assert len(lane["ids"]) == lane["length"] - start
            assert all(span["start"] >= start for span in lane["spans"] if not span["shared"])
    assert shared > 1000


def test_every_episode_of_a_multi_agent_run_shows_each_message_under_a_turn(tmp_path):
    for entry in index_run(golden_run(tmp_path)).entries:
        record = read_episode(entry)
        data, _ = episode_data(record, Credited(), None)
        last = {bubble["turn"]: bubble["role"] for bubble in data["bubbles"]}
        assert last == dict.fromkeys(range(len(record.episode.turns)), "assistant")


@pytest.mark.fault(
    "What people see", "an agent writes HTML and scripts into what `astune view` shows", "nothing of it is markup"
)
def test_text_of_agents_never_stands_in_the_page_as_text(tmp_path):
    run = empty_run(tmp_path, project_name="<i>x</i>")
    episode = replace(
        small_episode(1.0, HOSTILE),
        task=Task(HOSTILE, HOSTILE, answer=HOSTILE, metadata={HOSTILE: HOSTILE}),
        error=EpisodeError("workflow", HOSTILE, HOSTILE, HOSTILE),
    )
    with EpisodeLog(run) as log:
        log.write(episode, step=1, phase="train")
    text = write_view(run.path, tmp_path / "view.html").read_text("utf-8")
    assert "onerror" not in text and "<i>" not in text and "<img" not in text
    assert text.count("</script>") == 3  # the head, the script, one block


def test_scripts_make_no_markup_of_text_and_use_no_listener_per_token():
    folder = view_module.PAGE
    assert sorted(path.stem for path in folder.glob("*.js")) == sorted(SCRIPTS)
    for path in folder.iterdir():
        text = path.read_text("utf-8")
        assert len(text.splitlines()) < 300
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|fetch\(|https?://(?!www\.w3)", text
        )


def test_equal_runs_give_equal_pages(make_run, tmp_path):
    run = make_run(steps=1, held_out=4)
    first = write_view(run.path, tmp_path / "a.html").read_bytes()
    assert write_view(run.path, tmp_path / "b.html").read_bytes() == first


@pytest.mark.fault(
    "What people see", "a run under way is looked at", "what is complete is shown, and the half-written line told"
)
def test_a_run_under_way_with_a_half_written_line_is_shown_and_says_so(make_run):
    run = make_run(steps=2, held_out=4)
    path = run.episodes_dir / "train.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], b"{broken\n", b'{"step": 1}\n', b"[]\n", *lines[3:10], lines[10][:200]]))
    with run.metrics_path.open("a") as file:
        file.write('{"no": "step"}\n{"step": 3, "rew')
    head, _ = parts(write_view(run.path, run.path / "view.html"))
    assert head["left_out_by_file"] == {"metrics.jsonl": 2, "train.jsonl": 4}
    whys = {line["line"]: line["why"] for line in head["left_out"] if line["file"] == "train.jsonl"}
    assert "not JSON" in whys[4] and "KeyError" in whys[5] and "found list" in whys[6] and "unfinished" in whys[14]
    assert [line for line in head["episodes"]["line"] if line > 3][:7] != []
    assert sum(head["phases"][phase] == "train" for phase in head["episodes"]["phase"]) == 10


def test_a_run_without_metrics_episodes_or_tokenizer_is_a_page_too(tmp_path):
    run = empty_run(tmp_path, model={"path": str(tmp_path / "gone")})
    head, blocks = parts(write_view(run.path, tmp_path / "view.html"))
    assert head["episodes"]["line"] == [] and head["curves"] == {} and blocks == []
    with EpisodeLog(run) as log:
        log.write(small_episode(1.0), step=0, phase="debug")
    head, blocks = parts(write_view(run.path, tmp_path / "view.html"))
    assert head["without_tokenizer"] and head["phases"] == ["debug"]
    assert blocks[0]["texts"] is None and blocks[0]["episodes"]["debug:1"]["lanes"][0]["ids"] == [1, 2, 3]


def test_not_all_episodes_are_in_memory_at_once(make_run, monkeypatch):
    run = make_run(steps=6, held_out=20)
    alive, most = set(), 0

    def counted(entry):
        nonlocal most
        record = read_episode(entry)
        return Tracked(record.step, record.phase, record.episode)

    class Tracked(EpisodeRecord):
        def __init__(self, *values):
            nonlocal most
            super().__init__(*values)
            alive.add(id(self))
            most = max(most, len(alive))

        def __del__(self):
            alive.discard(id(self))

    monkeypatch.setattr(view_module, "read_episode", counted)
    write_view(run.path, run.path / "view.html")
    assert 0 < most <= 16


def write_page(run, out=None):
    return view(Namespace(run_dir=run, out=out, serve=False, open=False))


def test_the_command_writes_into_the_run_or_to_a_place_of_choice(make_run, tmp_path, capsys):
    run = make_run(steps=1, held_out=4)
    assert write_page(run.path) == 0
    assert (run.path / "view.html").is_file() and str(run.path / "view.html") in capsys.readouterr().out
    assert write_page(run.path, tmp_path / "other.html") == 0
    assert (tmp_path / "other.html").read_bytes() == (run.path / "view.html").read_bytes()
    assert not list(run.path.glob("*.new"))


def test_a_folder_that_is_no_run_lists_runs_nearby(make_run, tmp_path):
    run = make_run(steps=1, held_out=4)
    for wrong in (run.path.parent, run.path.parent / "math_agnt", run.path / "episodes"):
        with pytest.raises(ConfigError, match=r"expected the folder of a run.*Runs nearby: .*math_agent"):
            write_page(wrong)
    shutil.rmtree(run.path)
    with pytest.raises(ConfigError, match="no such folder; expected the folder of a run, as runs/project/name"):
        write_page(run.path)


def get(app, host="127.0.0.1"):
    async def ask():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            return await client.get("/")

    return asyncio.run(ask())


def test_a_served_page_grows_with_its_run_and_is_for_this_machine_only(tmp_path):
    run = empty_run(tmp_path)
    (tmp_path / "served").mkdir()
    app = view_app(run.path, tmp_path / "served")
    with EpisodeLog(run) as log:
        log.write(small_episode(1.0), step=1, phase="train")
        assert len(parts_of(get(app).text)["episodes"]["line"]) == 1
        log.write(small_episode(0.0), step=1, phase="train")
        metrics = MetricsLog(run)
        metrics.log(1, {"reward/mean": 0.5})
        metrics.close()
        head = parts_of(get(app).text)
    assert len(head["episodes"]["line"]) == 2 and head["curves"] == {"reward/mean": [[1, 0.5, 1]]}
    assert get(app, host="evil.example").status_code == 400


def test_the_server_says_where_it_is_and_ends_with_ctrl_c(tmp_path):
    run = empty_run(tmp_path)
    command = [sys.executable, "-m", "astune", "view", str(run.path), "--serve", "--port"]
    server = subprocess.Popen([*command, "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    address = server.stdout.readline().split()[1]
    assert address.startswith("http://127.0.0.1:")
    assert parts_of(httpx.get(address).text)["episodes"]["line"] == []
    taken = subprocess.run([*command, address.rpartition(":")[2].strip("/")], capture_output=True, text=True)
    assert "another one may be free, --port 0 takes any" in taken.stderr
    server.send_signal(signal.SIGINT)
    _, complaints = server.communicate(timeout=120)
    assert server.returncode == 0 and complaints == ""


def parts_of(text):
    return unpack(re.search(r'id="head">([^<]*)<', text)[1])
