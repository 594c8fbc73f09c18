"""What the documentation lists is what there is: links, keys, metrics, error messages, papers, packages."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import astune
from astune.config.load import load_config
from astune.monitor import blocking, read_metrics
from astune.plugins import load_plugin
from astune.types import StopReason
from tests.rows import each_row

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        ROOT / "llms.txt",
        *DOCS.glob("*.md"),
        *(ROOT / "tutorial").rglob("*.md"),
        *(ROOT / "skills").rglob("*.md"),
    ]
)
PROBE = Path(__file__).with_name("probe.py")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def links(page: Path) -> Iterator[str]:
    yield from re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8")))


@each_row("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_inside_the_project_leads_somewhere(page: Path) -> None:
    dead = []
    for link in links(page):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def test_all_links_are_seen() -> None:
    assert sum(len(list(links(page))) for page in PAGES) > 50


def test_one_numbered_path_leads_through_all_pages() -> None:
    listed = re.findall(r"^(\d+)\. \[(.+?)\]\(docs/(\w+)\.md\): ", read("README.md"), re.MULTILINE)
    assert [int(number) for number, _, _ in listed] == list(range(1, len(listed) + 1))
    names = [name for _, _, name in listed]
    assert sorted(names) == sorted(page.stem for page in DOCS.glob("*.md"))
    last = "This was the last page. Back to the [README](../README.md#the-pages-in-order)"
    ends = [*(f"Next: [{title}]({name}.md)" for _, title, name in listed[1:]), last]
    for (_, title, name), end in zip(listed, ends, strict=True):
        first, *_, final = read(f"docs/{name}.md").strip().splitlines()
        assert (name, first, final) == (name, f"# {title}", end)


def test_the_page_of_the_architecture_lists_the_packages_that_there_are() -> None:
    tree = read("docs/architecture.md").partition("\nastune/\n")[2].partition("```")[0]
    listed = set(re.findall(r"^  ([\w.]+)/?", tree, re.MULTILINE))
    there = {
        path.name for path in (ROOT / "astune").iterdir() if path.suffix != ".typed" and not path.name.startswith("__")
    }
    assert listed == there


def test_no_figure_or_picture_is_left_to_fill_in() -> None:
    assert [page.name for page in PAGES if "MEASURED_LATER" in page.read_text(encoding="utf-8")] == []


def test_every_key_that_a_page_names_exists() -> None:
    from astune.config.keys import FIELDS

    named = {key for page in PAGES for key in re.findall(r"`(astune\.[a-z_.]+)`", page.read_text(encoding="utf-8"))}
    functions = {f"astune.{name}" for name in astune.__all__}
    paths = {key: ROOT / key.replace(".", "/") for key in named - set(FIELDS) - functions}
    unknown = {key for key, path in paths.items() if not path.is_dir() and not path.with_suffix(".py").is_file()}
    assert unknown == set() and len(named & set(FIELDS)) > 20


def glossary(*, drawn: bool = True) -> set[str]:
    """The metrics of the page, with or without those that the report draws, of which a run has some."""
    section = read("docs/runs.md").partition("## Metrics")[2]
    text = section if drawn else section.partition("<!-- end -->")[2]
    return set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))


def covers(entry: str, name: str) -> bool:
    """`stop/<reason>` covers `stop/error`, and `eval/<decoding>/<figure>_low` covers `eval/greedy/judge/depth_low`."""
    pattern = re.escape(entry).replace(r"\<", "<").replace(r"\>", ">").replace("<figure>", ".+")
    pattern = re.sub(r"<\w+>", r"[^/]+", pattern)
    return re.fullmatch(pattern, name) is not None


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all metrics of a short run with failures, forks, greedy turns, groups without signal, and
    rollouts that do not wait."""
    pytest.importorskip("torch")
    from astune.backbone.local.engine import LocalBackbone

    folder = tmp_path_factory.mktemp("probe")
    rows = [f'{{"query": "{name}", "case": "{name}"}}' for name in ("learn", "broken", "equal")]
    (folder / "tasks.jsonl").write_text("\n".join(rows))
    overrides = [
        f"astune.runs_dir={folder}/runs",
        f"astune.rollout.agentscope_learn_protocol={PROBE}:Probe",
        f"astune.task_judge.judge_protocol={PROBE}:judge",
        f"astune.task_reader.jsonl.training.file_path={folder}/tasks.jsonl",
        f"astune.task_reader.jsonl.validation.file_path={folder}/tasks.jsonl",
        "astune.task_reader.on_overlap=warn",
        "astune.rollout.num_repeat=4",
        "astune.rollout.max_tokens=8",
        "astune.evaluation.attempts=2",
        "astune.trainer.total_steps=1",
        "astune.trainer.tasks_per_step=3",
        "astune.synchronizer.style=async",
        "astune.synchronizer.max_staleness=0",
        "astune.monitor.progress=off",
        "astune.monitor.trackers=[]",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocking, "EVERY", 0.01)
        report = LocalBackbone().run(load_config(None, overrides))
    return {name for row in read_metrics(report.run_dir / "metrics.jsonl") for name in row} - {"step", "time"}


def test_the_glossary_has_every_metric_that_a_run_logs(logged: set[str]) -> None:
    assert len(logged) > 35
    assert {name for name in logged if not any(covers(entry, name) for entry in glossary())} == set()


def test_a_run_logs_every_metric_of_the_glossary(logged: set[str]) -> None:
    assert {entry for entry in glossary(drawn=False) if not any(covers(entry, name) for name in logged)} == set()


def test_the_glossary_names_every_way_an_episode_ends() -> None:
    (line,) = [line for line in read("docs/runs.md").splitlines() if line.startswith("| `stop/<reason>`")]
    assert set(re.findall(r"`(\w+)`", line)) == {reason.value for reason in StopReason}


def messages(tree: ast.AST) -> Iterator[str]:
    """Every text in some code, `...` for what is put in."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [str(part.value) if isinstance(part, ast.Constant) else "..." for part in node.values]
            yield "".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_the_error_messages_of_troubleshooting_are_those_of_the_code() -> None:
    symptoms = re.findall(r"^\| `([^`]+)` \|", read("docs/troubleshooting.md"), re.MULTILINE)
    texts = [text for path in (ROOT / "astune").rglob("*.py") for text in messages(ast.parse(path.read_text()))]
    assert len(symptoms) > 20
    unknown = []
    for symptom in symptoms:
        pattern = re.compile(".*".join(map(re.escape, symptom.split("..."))), re.DOTALL)
        if not any(pattern.search(text) for text in texts):
            unknown.append(symptom)
    assert unknown == []


def test_every_paper_that_the_code_names_is_in_the_index() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "astune").rglob("*.py"))
    named = set(re.findall(r"arXiv (\d{4}\.\d{5})", sources))
    assert len(named) >= 5
    assert named <= set(re.findall(r"arxiv\.org/abs/(\d{4}\.\d{5})", read("docs/papers.md")))


def test_the_layers_of_contributing_are_those_that_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))  # a plug-in's folder stays there; tests/trinity is no `trinity`
    layers = load_plugin(f"{ROOT / 'tests' / 'test_architecture.py'}:LAYERS", kind="test")
    there = {path.stem for path in (ROOT / "astune").iterdir()}
    checked = [sorted(layer & there) for layer in layers[:-1]]
    written = re.findall(r"^[a-z ]*\d+  ([\w ]+)$", read("CONTRIBUTING.md"), re.MULTILINE)
    assert [sorted(line.split()) for line in written] == [layer for layer in checked if layer]
