"""The parsers of documents of AgentScope 2.x, where they and what they need are installed."""

from __future__ import annotations

import asyncio
from pathlib import Path


def parse_pages(path: Path) -> list[tuple[str, str]] | None:
    """Places and texts of a PDF, Word or PowerPoint file; None where its parser, or the package with which this reads,
    is not there."""
    try:
        from agentscope.rag import PDFParser, PPTParser, WordParser

        parsers = {
            ".pdf": PDFParser(),
            ".docx": WordParser(include_image=False),
            ".pptx": PPTParser(include_image=False, slide_prefix=None, slide_suffix=None),
        }
        sections = asyncio.run(parsers[path.suffix.lower()].parse(str(path), path.name))
    except ImportError:
        return None
    pages: dict[str, list[str]] = {}
    for section in sections:
        place = " ".join(f"{name} {section.metadata[name]}" for name in ("page", "slide") if name in section.metadata)
        if section.content.type == "text":
            pages.setdefault(place, []).append(section.content.text)
    return [(place, "\n".join(texts)) for place, texts in pages.items()]
