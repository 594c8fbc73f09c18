"""What coding agents read: the skill, AGENTS.md and llms.txt. Their blocks are run by test_snippets."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

import pytest

pytest.importorskip("agentscope")

ROOT = Path(__file__).parents[2]
SKILL = ROOT / "skills" / "astune"
REFERENCES = {"doctor", "gamed_judge", "laptop_to_cluster", "resume", "reward_zero"}
FRONT_MATTER = r"---\nname: ([a-z0-9-]{1,64})\ndescription: (.{1,1024})\n---\n"
"""What Claude's loader of skills takes; the name is that of the folder."""


@pytest.mark.skipif(metadata.version("agentscope")[0] != "2", reason="skills are AgentScope 2.x's")
async def test_agentscope_hands_the_skill_to_an_agent() -> None:
    from agentscope.skill import LocalSkillLoader
    from agentscope.tool import Toolkit

    (skill,) = await LocalSkillLoader(str(SKILL)).list_skills()
    assert skill.name == "astune" and skill.markdown.startswith("# Tune an agent with ASTune")
    told = await Toolkit(skills_or_loaders=[str(SKILL)]).get_skill_instructions()
    assert told is not None and skill.description in told


def test_the_skill_is_short_and_leads_to_each_reference() -> None:
    text = (SKILL / "SKILL.md").read_text(encoding="utf-8")
    begins = re.match(FRONT_MATTER, text)
    assert begins is not None and begins[1] == SKILL.name
    assert len(text.splitlines()) <= 120
    assert set(re.findall(r"\]\(references/(\w+)\.md\)", text)) == REFERENCES
    lines = {path.stem: len(path.read_text("utf-8").splitlines()) for path in (SKILL / "references").iterdir()}
    assert set(lines) == REFERENCES and max(lines.values()) <= 60


def test_llms_txt_names_the_pages_of_the_readme_in_its_order() -> None:
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    title, _, summary, *_ = text.splitlines()
    assert title.startswith("# ") and summary.startswith("> ")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\d+\. (\[.+\]\(docs/.+)$", readme, re.MULTILINE)
    assert re.findall(r"^- (\[.+\]\(docs/.+)$", text, re.MULTILINE) == listed != []
