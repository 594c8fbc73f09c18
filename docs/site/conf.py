"""Configuration of the site: Sphinx over the repository's Markdown, in the order of README's numbered path."""

import re
from pathlib import Path

from pygments.lexers import JsonLexer
from sphinx.application import Sphinx

import astune

ROOT = Path(__file__).resolve().parents[2]

project = "ASTune"
author = "the authors of ASTune"
version = release = astune.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "tutorial/**.md", "benchmarks/*.md", "external/*/*.md", "skills/**.md"]
exclude_patterns = [".venv*", "runs"]
suppress_warnings = ["toc.not_included"]  # of pages that only a link leads to

myst_heading_anchors = 4

# Docstrings are Markdown: names stand in single backticks.
default_role = "code"
autodoc_typehints = "description"
autodoc_member_order = "bysource"

html_theme = "furo"
html_title = f"ASTune {release}"
html_copy_source = False
html_show_sourcelink = False

_CHAPTER = re.compile(r"^\d+\. \[[^]]+\]\((?P<page>docs/[a-z_0-9/]+)\.md\)", re.MULTILINE)


def _list_pages(caption: str, pages: list[str]) -> str:
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```", ""])


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Append what the sidebar shows to the front page: the path of README, the tutorials, the names of the package."""
    if page != root_doc:
        return
    chapters = _CHAPTER.findall(source[0])
    tutorials = sorted(str(path.relative_to(ROOT).with_suffix("")) for path in ROOT.glob("tutorial/*/README.md"))
    chinese = sorted(str(path.relative_to(ROOT).with_suffix("")) for path in ROOT.glob("docs/zh/*.md"))
    source[0] += (
        _list_pages("Pages, in order", chapters)
        + _list_pages("Tutorials", tutorials)
        + _list_pages("Names", ["docs/site/api", "CHANGELOG", "CONTRIBUTING"])
        + _list_pages("中文", ["README_zh", *chinese])
    )


def mark_code(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Mark the indented lines of a docstring, in place, as reStructuredText wants code to be marked."""
    marked: list[str] = []
    for before, line in zip(["", *lines], lines, strict=False):
        begins = line.startswith("    ") and not before.strip() and marked
        if begins and not next(text for text in reversed(marked) if text.strip()).startswith("    "):
            marked += ["::", ""]
        marked.append(line)
    lines[:] = marked


def help_keyboard(app: Sphinx, page: str, template: str, context: dict[str, object], doctree: object) -> None:
    """Let the keyboard scroll code and tables that are wide, and give the sidebar's headings their level."""
    body = str(context.get("body", "")).replace("<pre>", '<pre tabindex="0">')
    context["body"] = body.replace('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper')
    tree = str(context.get("furo_navigation_tree", ""))
    context["furo_navigation_tree"] = tree.replace('role="heading"', 'role="heading" aria-level="2"')


def switch_language(app: Sphinx, page: str, template: str, context: dict[str, object], doctree: object) -> None:
    """Lead from a page to its Chinese one and back, and say its language; the front pages do by themselves."""
    chinese = page == "README_zh" or page.startswith("docs/zh/")
    if chinese:
        context["language"] = "zh-CN"
    other = page.replace("docs/zh/", "docs/") if chinese else page.replace("docs/", "docs/zh/", 1)
    if other != page and other in app.env.found_docs and callable(lead := context["pathto"]):
        words = '<span lang="en">English</span>' if chinese else '<span lang="zh-CN">中文</span>'
        context["body"] = f'<p><a href="{lead(other)}">{words}</a></p>{context["body"]}'


def lead_to_front_page(app: Sphinx, failure: Exception | None) -> None:
    """Write `index.html`, which servers of pages look for."""
    page = f'<!doctype html><title>{project}</title><meta http-equiv="refresh" content="0; {root_doc}.html">'
    Path(app.outdir, "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> None:
    app.add_lexer("jsonl", JsonLexer)
    app.connect("source-read", add_contents)
    app.connect("autodoc-process-docstring", mark_code)
    app.connect("html-page-context", help_keyboard, priority=900)  # after the theme
    app.connect("html-page-context", switch_language)
    app.connect("build-finished", lead_to_front_page)
