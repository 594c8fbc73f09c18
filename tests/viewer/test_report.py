import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from urllib.parse import parse_qs

import pytest

from astune.config.schema import Config
from astune.monitor import EpisodeLog, MetricsLog, RunDir, read_episodes
from astune.monitor.episodes import episodes_path
from astune.monitor.summary import show_interval
from astune.monitor.words import METRICS
from astune.support.statistics import estimate
from astune.types import Episode, EpisodeError, Span, StopReason, Task, Timeline, Turn, Verdict, WorkflowOutput
from astune.viewer import write_report
from astune.viewer.charts import SMALL_CHARTS
from astune.viewer.page import _read_inline
from tests.viewer.chromium import PROGRAM, Chromium
from tests.viewer.test_view import parts, whole_lanes

HOSTILE = '</script><img src=x onerror="alert(1)"><b>&amp;{{ 1 }}'


class Page(HTMLParser):
    """Tags and visible text of a page, as a browser's parser sees them."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside.append(tag)

    def handle_endtag(self, tag):
        if tag in ("script", "style"):
            self._inside.pop()

    def handle_data(self, data):
        if not self._inside:
            self.text += data


def page_of(run_dir: RunDir) -> Page:
    return Page(write_report(run_dir.path).read_text("utf-8"))


def empty_run(tmp_path, **keys: object) -> RunDir:
    return RunDir.open(Config.model_validate({"astune": {"runs_dir": str(tmp_path), **keys}}), resume=False)


def hostile_episode() -> Episode:
    messages = ({"role": "user", "content": HOSTILE}, {"role": "tool", "content": HOSTILE})
    call = {"function": {"name": HOSTILE, "arguments": json.dumps({HOSTILE: HOSTILE})}}
    response = {"content": HOSTILE, "reasoning_content": HOSTILE, "tool_calls": [call]}
    turn = Turn(
        HOSTILE, (1,), (2,), (-0.5,), 0, "stop", excluded=HOSTILE, fork=HOSTILE, messages=messages, response=response
    )
    line = Timeline(HOSTILE, (1, 2), (Span(0, 1, 2, 0, 1.0, False, (-0.5,)),), HOSTILE)
    return Episode(
        HOSTILE,
        Task(HOSTILE, HOSTILE, answer=HOSTILE, metadata={"kind": HOSTILE}),
        (turn,),
        (line,),
        StopReason.ERROR,
        WorkflowOutput(HOSTILE),
        Verdict(0.0, False, HOSTILE),
        EpisodeError("workflow", HOSTILE, HOSTILE, HOSTILE),
        agent_rewards={HOSTILE: 1.0},
    )


@pytest.mark.fault("What people see", "an agent writes HTML and scripts", "the report shows them as text")
def test_text_of_an_agent_can_neither_run_nor_break_out_of_the_page(tmp_path):
    run_dir = empty_run(tmp_path, project_name="<i>x</i>")
    metrics = MetricsLog(run_dir)
    with EpisodeLog(run_dir) as log:
        for step in (0, 1):
            log.write(hostile_episode(), step=step, phase="train")
            log.write(hostile_episode(), step=step, phase="eval/greedy")
            named = {f"{key}{HOSTILE}": 1.0 for key in ("tokens/dropped_", "forks/", "agent_reward/", "workflow/")}
            metrics.log(step, {"eval/greedy/success": 0.0, "tokens/sampled": 1, "turns/total": 1, **named})
    metrics.close()
    page = page_of(run_dir)
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"img", "b", "i"}
    assert not [attributes for _, attributes in page.tags if any(name.startswith("on") for name in attributes)]
    assert page.text.count(HOSTILE) > 5


def test_the_page_needs_no_other_file_and_no_network(make_run):
    page = page_of(make_run(steps=2, held_out=10))
    assert not {tag for tag, _ in page.tags} & {"iframe", "img", "object", "base"}
    addresses = [str(a[name]) for _, a in page.tags for name in ("src", "href") if name in a]
    assert addresses and all(address.startswith(("#episode=", "data:")) for address in addresses)
    style, _ = _read_inline()
    assert "url(" not in style and "@import" not in style


def test_the_page_holds_the_exact_tokens_of_the_episodes_that_it_names_and_their_groups(make_run):
    run_dir = make_run(steps=3, held_out=10)
    path = write_report(run_dir.path)
    links = [str(a["href"]) for tag, a in Page(path.read_text("utf-8")).tags if tag == "a"]
    named = {key for link in links for key in parse_qs(link.removeprefix("#"))["episode"]}
    head, blocks = parts(path)
    held = {key: episode for block in blocks for key, episode in block["episodes"].items()}
    assert len(held) == len(head["episodes"]["line"]) and named <= held.keys()
    assert len([key for key in held if key.startswith("train:")]) == 3 * 4 and len(named) >= 5
    for key, episode in held.items():
        phase, line = key.split(":")
        record = list(read_episodes(episodes_path(run_dir.episodes_dir, phase)))[int(line) - 1]
        assert whole_lanes(episode) == [list(each.token_ids) for each in record.episode.timelines]


def test_before_and_after_are_the_same_tasks_and_by_kind(make_run):
    page = page_of(make_run(steps=4, held_out=20))
    assert "before: step 0" in page.text and "after: step 4" in page.text
    assert "boxes" in page.text and "prices" in page.text
    each = r"[\d.]+ % → [\d.]+ %"
    assert re.search(
        rf"Better: held-out success {each}, sampled; {each}, greedy( \(no .*\))?, after 4 steps", page.text
    )


def evaluated(run_dir: RunDir, stages: int = 0, **right: dict[int, int]) -> str:
    """The text of the page of a run in which by decoding and step so many of 20 held-out tasks were right; it has as
    many training steps as the last of these."""
    metrics = MetricsLog(run_dir)
    last = max(step for points in right.values() for step in points)
    with EpisodeLog(run_dir) as log:
        for step in range(last + 1):
            if step:
                stage = {"stage": 1.0 + stages * (step - 1) // last} if stages else {}
                metrics.log(step, {"time/step": 1.0, "tokens/trained": 9.0, **stage})
            for decoding, points in right.items():
                if step not in points:
                    continue
                metrics.log(step, {f"eval/{decoding}/success": points[step] / 20})
                for number in range(20):
                    verdict = Verdict(float(number < points[step]), number < points[step])
                    episode = Episode("e", Task(f"t{number}", "q"), (), (), StopReason.COMPLETED, verdict=verdict)
                    log.write(episode, step=step, phase=f"eval/{decoding}")
    metrics.close()
    return page_of(run_dir).text


@pytest.mark.parametrize(
    ("right", "said"),
    [
        (
            {"sampled": {0: 9, 4: 10}, "greedy": {0: 6, 4: 19}},
            "Better: held-out success 30.0 % → 95.0 %, greedy; 45.0 % → 50.0 %, sampled (no clear change), after",
        ),
        (
            {"sampled": {0: 16, 4: 6}, "greedy": {0: 6, 4: 19}},
            "Better and worse: held-out success 80.0 % → 30.0 %, sampled (worse); 30.0 % → 95.0 %, greedy (better)",
        ),
        (
            {"greedy": {0: 2, 2: 19, 4: 10}},
            "10.0 % → 50.0 %, greedy, after 4 steps. After step 2 greedy success fell from 95.0 % to 50.0 %.",
        ),
    ],
)
def test_the_headline_says_what_became_of_each_decoding(tmp_path, right, said):
    assert said in evaluated(empty_run(tmp_path), **right)


def test_the_headline_says_which_stage_took_something_away(tmp_path):
    stages = [{"algorithm": {"method": method}, "trainer": {"total_steps": 2}} for method in ("sft", "rl")]
    text = evaluated(empty_run(tmp_path, stages=stages), 2, sampled={0: 2, 2: 18, 4: 9}, greedy={0: 2, 2: 18, 4: 19})
    assert "Stage 2 (rl) took sampled success from 90.0 % to 45.0 %." in text and "took greedy" not in text


def test_a_run_on_preferences_shows_accuracy_and_margin_and_says_what_figures_mean(tmp_path):
    run_dir = empty_run(tmp_path)
    metrics = MetricsLog(run_dir)
    for step, margin in ((1, 0.01), (2, 1.25)):
        row = {"loss": 0.7 - margin / 2, "preference/accuracy": 0.5 + margin / 3, "preference/margin": margin}
        metrics.log(step, {**row, "tokens/trained": 9.0, "time/step": 1.0})
    metrics.close()
    page = page_of(run_dir)
    assert (
        "Share of pairs in which the better answer gained more 0.503 → 0.917; loss in training 0.695 → 0.075"
        in page.text
    )
    assert "accuracy 0.503 → 0.917, margin 0.01 → 1.25" in page.text
    head, _ = parts(run_dir.report_path)
    assert {"preference/accuracy", "preference/margin", "loss"} <= set(head["charts"])
    for name in ("preference/margin", "loss"):
        assert METRICS[name] in page.text


def test_every_figure_that_pages_draw_has_its_words():
    assert {*SMALL_CHARTS, "success/mean"} == set(METRICS)


@pytest.mark.skipif(PROGRAM is None, reason="needs Debian's chromium")
def test_no_page_is_wider_than_a_phone(make_run):
    """Tables and code scroll within themselves."""
    run_dir = make_run(steps=4, held_out=20)
    with Chromium(width=360, height=740) as page:
        page.open(write_report(run_dir.path).as_uri())
        page.eval("document.querySelectorAll('details').forEach((each) => { each.open = true })")
        assert page.eval("document.documentElement.scrollWidth") <= 360


def test_a_small_difference_is_not_called_better(tmp_path):
    text = evaluated(empty_run(tmp_path), greedy={0: 10, 5: 12})
    assert "No clear change: held-out success 50.0 % → 60.0 %" in text
    for right in (10, 12):  # the intervals of the metrics
        found = estimate([float(number < right) for number in range(20)], share=True)
        assert found.interval is not None
        assert f"{100 * found.mean:.1f} % ({show_interval('success', *found.interval)})" in text


def test_a_run_that_has_done_nothing_yet_has_a_page(tmp_path):
    assert "No step was finished." in page_of(empty_run(tmp_path)).text


def test_ids_stand_for_texts_where_the_tokenizer_is_gone(make_run):
    run_dir = make_run(steps=1, tasks_per_step=1, held_out=1)
    text = run_dir.config_path.read_text("utf-8")
    run_dir.config_path.write_text(text.replace("path: tiny", "path: /gone"), "utf-8")
    _, blocks = parts(write_report(run_dir.path))
    assert blocks and all(block["texts"] is None for block in blocks)


def test_a_line_that_cannot_be_read_is_left_out_and_told(make_run):
    run_dir = make_run(steps=1, tasks_per_step=1, held_out=1)
    with (run_dir.episodes_dir / "train.jsonl").open("a") as file:
        file.write('{"step": 1, "phase"')
    head, _ = parts(write_report(run_dir.path))
    assert [line["why"] for line in head["left_out"]] == ["the line is unfinished"]


def test_changed_settings_stand_first_with_their_defaults(make_run):
    text = page_of(make_run(steps=1, tasks_per_step=1, held_out=1)).text
    changed = text[text.index("Configuration") : text.index("keys", text.index("Configuration"))]
    assert re.search(r"astune\.trainer\.learning_rate\s*0\.0003\s*1e-06", changed)
    assert "astune.trainer.weight_decay" not in changed


def test_failures_are_counted_by_reason_with_a_message(tmp_path):
    run_dir = empty_run(tmp_path)
    error = EpisodeError("workflow", "KeyError", "no key 'price'")
    failed = Episode("e", Task("t", "q"), (), (), StopReason.ERROR, error=error)
    with EpisodeLog(run_dir) as log:
        for _ in range(3):
            log.write(failed, step=1, phase="train")
        log.write(replace(failed, error=None, stop_reason=StopReason.MAX_TURNS), step=1, phase="train")
    text = page_of(run_dir).text
    assert re.search(r"3\s*train\s*workflow: KeyError\s*no key 'price'", text)
    assert re.search(r"1\s*train\s*max turns", text)


@pytest.mark.skipif(PROGRAM is None, reason="needs Debian's chromium")
def test_a_link_of_the_story_opens_its_episode_and_escape_goes_back_to_the_story(make_run):
    run_dir = make_run(steps=2, held_out=4)
    with Chromium() as page:
        page.open(write_report(run_dir.path).as_uri())
        assert "Better" in page.text(".verdict") or "No clear change" in page.text(".verdict")
        page.point('a[href*="train"]', click=True)
        page.wait("document.querySelector('#stream .trained')")
        assert page.text("#episode h1").startswith("train-") and "4 attempts" in page.text(".attempts")
        page.press("Escape")
        page.wait("!document.querySelector('#run').hidden")
        assert page.errors == [] and page.requests == []
