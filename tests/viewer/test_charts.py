import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astune.viewer.charts import HEIGHT, WIDTH, curve_svg, name_metric, nice_ticks, small_charts, smooth

SVG = "{http://www.w3.org/2000/svg}"
METRICS = [
    {"step": 0, "eval/sampled/success": 0.4, "eval/greedy/success": 0.5},
    *({"step": step, "success/mean": step / 50} for step in range(1, 41)),
    {"step": 40, "eval/sampled/success": 0.8, "eval/greedy/success": 0.9},
]


def texts(svg: str) -> str:
    return " ".join(ElementTree.fromstring(svg).itertext())


def test_the_curve_names_first_and_last_held_out_value_of_each_decoding():
    shown = texts(curve_svg(METRICS))
    assert "held-out, sampled  40.0 % → 80.0 %" in shown and "held-out, greedy  50.0 % → 90.0 %" in shown


def test_the_curve_carries_its_own_style_for_light_and_dark_and_no_script():
    tree = ElementTree.fromstring(curve_svg(METRICS))
    assert "prefers-color-scheme: dark" in texts(curve_svg(METRICS))
    assert not [element for element in tree.iter() if element.tag == f"{SVG}script" or "href" in element.attrib]


def test_a_title_with_markup_is_text():
    assert "<b>&" in texts(curve_svg(METRICS, "<b>&"))


def test_rewards_that_are_no_successes_get_a_scale_of_their_own():
    metrics = [{"step": step, "reward/mean": -3.0 + step} for step in range(10)]
    shown = texts(curve_svg(metrics))
    assert "reward in training" in shown and "-4" in shown and "%" not in shown.split("}")[-1]


@given(st.lists(st.floats(-1e6, 1e6), max_size=40), st.booleans())
def test_every_point_lies_in_the_picture(values, success):
    key = "success/mean" if success else "reward/mean"
    values = [abs(value) / 1e6 for value in values] if success else values
    tree = ElementTree.fromstring(curve_svg([{"step": n, key: value} for n, value in enumerate(values)]))
    for circle in tree.iter(f"{SVG}circle"):
        assert 0 <= float(circle.attrib["cx"]) <= WIDTH and 0 <= float(circle.attrib["cy"]) <= HEIGHT


@given(st.lists(st.floats(-1e9, 1e9), min_size=1))
def test_ticks_enclose_the_values_and_are_few(values):
    ticks = nice_ticks(values)
    slack = 1e-6 * (ticks[-1] - ticks[0])
    assert ticks[0] <= min(values) + slack and max(values) <= ticks[-1] + slack
    assert 2 <= len(ticks) <= 12


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=100))
def test_smoothing_keeps_the_ends_and_the_range(values):
    points = list(enumerate(values))
    smoothed = smooth(points)
    assert [step for step, _ in smoothed] == [step for step, _ in points]
    assert smoothed[0] == pytest.approx(points[0]) and smoothed[-1] == pytest.approx(points[-1])
    assert all(min(values) - 1e-9 <= value <= max(values) + 1e-9 for _, value in smoothed)


def test_the_workflows_own_metrics_get_a_picture_each_by_their_own_names():
    names = ["loss", "workflow/b", "reward/mean", "workflow/a", "agent_reward/x", "workflow/loss", "policy_version"]
    found = small_charts(names)
    assert found == ["reward/mean", "agent_reward/x", "workflow/a", "workflow/b", "workflow/loss", "loss"]
    assert [name_metric(name) for name in found] == ["reward/mean", "agent_reward/x", "a", "b", "workflow/loss", "loss"]


def test_the_script_draws_a_run(make_run, tmp_path):
    run_dir = make_run(steps=2, tasks_per_step=1, held_out=2)
    root = Path(__file__).parents[2]
    command = [sys.executable, str(root / "scripts" / "plot_run.py"), str(run_dir.path), str(tmp_path / "c.svg")]
    subprocess.run([*command, "My run"], check=True, env={**os.environ, "PYTHONPATH": str(root)})
    assert "My run" in texts((tmp_path / "c.svg").read_text("utf-8"))
