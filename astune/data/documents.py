"""Read documents: PDF, HTML, Word, PowerPoint, Markdown and text, as parts that know their file and place.

AgentScope 2.x's parsers are used where they are installed (its extra `rag`), else pypdf and markitdown (extra `data`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from astune.errors import MissingDependency, TaskError
from astune.support.words import Words, words_of

logger = logging.getLogger(__name__)
TEXT = (".md", ".markdown", ".txt", ".rst")
OF_AGENTSCOPE = (".pdf", ".docx", ".pptx")
"""Kinds that AgentScope has a parser for."""
SUFFIXES = (*TEXT, *OF_AGENTSCOPE, ".html", ".htm")
_SLIDE = re.compile(r"<!-- Slide number: (\d+) -->")
_SENTENCE = re.compile(r"(?<=[.!?。!?])\s+|\n{2,}")


@dataclass(frozen=True)
class Passage:
    """A part of a document. `place` is its page or slide, where the file has any; `start` the letter of the page's text
    at which it begins."""

    file: str
    place: str
    start: int
    text: str


@dataclass(frozen=True)
class Document:
    """The passages of a file. Equal words have equal digests, whatever the files are called and of whatever kind."""

    file: str
    digest: str
    passages: Sequence[Passage]

    @property
    def sentences(self) -> set[Words]:
        texts = [passage.text for passage in self.passages]
        return {words_of(text[begin:end]) for text in texts for begin, end in _sentences(text)} - {()}


def read_documents(source: Path, chunk_words: int) -> list[Document]:
    """The documents of a file or a folder, in the order of their names; a text that is there twice counts once.

    Raises TaskError that lists all files that cannot be read, and says which kinds there are.
    """
    if not source.exists():
        raise TaskError(f"{source}: there is no such file or folder of documents")
    files = [source] if source.is_file() else list_files(source)
    known = [path for path in files if path.suffix.lower() in SUFFIXES]
    if not known:
        raise TaskError(f"{source}: no documents; expected {', '.join(SUFFIXES)}")
    if others := sorted({path.suffix or path.name for path in files} - {path.suffix for path in known}):
        left_out = len(files) - len(known)
        logger.warning("%s: files of other kinds are not read (%d): %s", source, left_out, ", ".join(others))
    found: dict[str, Document] = {}
    problems = []
    for path in known:
        name = str(path.relative_to(source)) if source.is_dir() else path.name
        try:
            pages = [(place, text) for place, text in read_pages(path) if text.strip()]
        except MissingDependency:
            raise
        except Exception as error:  # parsers raise what they like of files from anywhere
            problems.append(f"{path}: cannot be read: {error}")
            continue
        if not pages:
            problems.append(f"{path}: has no text (a scan?)")
            continue
        digest = hashlib.sha256(" ".join(word for _, text in pages for word in words_of(text)).encode()).hexdigest()
        passages = [part for place, text in pages for part in _cut(name, place, text, chunk_words)]
        found.setdefault(digest, Document(name, digest, passages))
    if problems:
        told = "take these out, or give files that can be read: without a password, text as UTF-8"
        raise TaskError("\n".join([*problems, told]))
    return [*found.values()]


def list_files(folder: Path) -> list[Path]:
    """All files in a folder. Raises TaskError for one that may not be looked into."""

    def refuse(error: OSError) -> None:
        raise TaskError(f"{error.filename}: cannot be read: {error.strerror}")

    found = (Path(place, name) for place, _, names in os.walk(folder, onerror=refuse) for name in names)
    return sorted(path for path in found if not path.is_fifo())  # which would be waited for without end


def read_pages(path: Path) -> list[tuple[str, str]]:
    """Places and texts of a file. Raises MissingDependency, and what the parsers raise."""
    suffix = path.suffix.lower()
    if suffix in TEXT:
        return [("", path.read_text(encoding="utf-8-sig"))]
    if suffix in OF_AGENTSCOPE:
        from astune.data.agentscope_parsers import parse_pages

        if (pages := parse_pages(path)) is not None:
            return pages
    return read_alone(path)


def read_alone(path: Path) -> list[tuple[str, str]]:
    """Read without AgentScope."""
    try:
        if path.suffix.lower() == ".pdf":
            from pypdf import PdfReader

            pages = enumerate(PdfReader(path).pages, start=1)
            return [(f"page {number}", page.extract_text() or "") for number, page in pages]
        from markitdown import MarkItDown

        text = MarkItDown(enable_plugins=False).convert_local(path).text_content
    except ImportError as error:
        raise MissingDependency(f"{path}: to read it, pip install 'astune[documents]' ({error})") from error
    if path.suffix.lower() != ".pptx":
        return [("", text)]
    _, *parts = _SLIDE.split(text)
    return [(f"slide {number}", part) for number, part in zip(parts[::2], parts[1::2], strict=True)]


def _cut(file: str, place: str, text: str, most: int) -> Iterator[Passage]:
    """Whole sentences, as many as there is room for; a longer sentence is a passage of its own."""
    start, words = 0, 0
    for begin, end in _sentences(text):
        count = len(words_of(text[begin:end]))
        if words and words + count > most:
            yield Passage(file, place, start, text[start:begin].strip())
            start, words = begin, 0
        words += count
    if words:
        yield Passage(file, place, start, text[start:].strip())


def _sentences(text: str) -> Iterator[tuple[int, int]]:
    begin = 0
    for gap in _SENTENCE.finditer(text):
        yield begin, gap.end()
        begin = gap.end()
    yield begin, len(text)
