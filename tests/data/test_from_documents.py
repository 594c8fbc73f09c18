"""`astune data from-documents` on an API that plants faults, and the readers on real files."""

from __future__ import annotations

import os
from pathlib import Path

import docx
import pptx
import pytest
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from astune.data.documents import read_alone, read_documents
from astune.data.from_documents import split_documents
from astune.data.prompts import NOT_IN_DOCUMENTS
from astune.errors import TaskError
from benchmarks.data_filters import SHARES_ASKED, checked, figures_of
from tests.data.planted_documents import PlantedDocuments
from tests.data.runs import ask, rows_of


def test_what_is_kept_stands_in_the_documents_and_is_not_known_without_them(tmp_path: Path) -> None:
    world = PlantedDocuments(seed=4, shares=SHARES_ASKED)
    assert ask(world, tmp_path) == 0
    kept, held_out = rows_of(tmp_path / "asked.jsonl"), rows_of(tmp_path / "asked.held_out.jsonl")
    assert len(kept) == 24 and len(held_out) == 5
    assert [row for row in [*kept, *held_out] if world.fault_of(row)] == []
    read = [{place["file"] for row in rows for place in row["lineage"]["documents"]} for rows in (kept, held_out)]
    assert not read[0] & read[1] and len(read[1]) == 1
    assert {row["lineage"]["kind"] for row in kept} == {"fact", "two", "computed", "absent"}
    for row in kept:
        whole = " ".join("".join(world.texts[place["file"]] for place in row["lineage"]["documents"]).split())
        assert all(span in whole for span in row["lineage"]["evidence"])
        assert (row["answer"] == NOT_IN_DOCUMENTS) == (row["lineage"]["kind"] == "absent")
    dropped = rows_of(tmp_path / "asked.dropped.jsonl") + rows_of(tmp_path / "asked.held_out.dropped.jsonl")
    assert {row["reason"] for row in dropped} >= {"evidence", "wrong answer", "known", "found"}
    figures = figures_of(checked([*kept, *held_out], dropped, world.fault_of), SHARES_ASKED)
    assert set(figures.values()) == {(1.0, 1.0)}, figures


def write_pdf(path: Path, pages: list[str], password: str | None = None) -> None:
    writer = PdfWriter()
    font = {"/Type": "/Font", "/Subtype": "/Type1", "/BaseFont": "/Helvetica"}
    named = DictionaryObject({NameObject(key): NameObject(value) for key, value in font.items()})
    for text in pages:
        page = writer.add_blank_page(300, 200)
        content = DecodedStreamObject()
        content.set_data(f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET".encode())
        page[NameObject("/Contents")] = writer._add_object(content)
        fonts = DictionaryObject({NameObject("/F1"): writer._add_object(named)})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
    if password is not None:
        writer.encrypt(password, algorithm="RC4-128")
    writer.write(path)


def write_files(folder: Path) -> None:
    folder.mkdir()
    write_pdf(folder / "a.pdf", ["The mill weighs 14 kg.", "It was built in 1923."])
    word = docx.Document()
    word.add_paragraph("The lamp burns 5 hours.")
    word.save(str(folder / "b.docx"))
    slides = pptx.Presentation()
    for text in ("First, 7 doors.", "Then 9 gates."):
        slide = slides.slides.add_slide(slides.slide_layouts[5])
        slide.shapes.title.text = text
    slides.save(str(folder / "c.pptx"))
    (folder / "d.html").write_text("<html><body><p>The <b>well</b> is deep.</p><script>x</script></body></html>")
    (folder / "e.md").write_text("# Notes\n\nThe tower has 80 steps. It leans.\n")
    (folder / "f.txt").write_text("# Notes\n\nThe tower has 80 steps. It leans.\n")


def test_real_files_of_each_kind_are_read_with_their_places(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_files(tmp_path / "all")
    (tmp_path / "all/g.png").write_bytes(b"")
    os.mkfifo(tmp_path / "all/pipe.txt")  # nobody writes into it
    found = {
        (passage.file, passage.place, passage.text)
        for document in read_documents(tmp_path / "all", 200)
        for passage in document.passages
    }
    assert found == {
        ("a.pdf", "page 1", "The mill weighs 14 kg."),
        ("a.pdf", "page 2", "It was built in 1923."),
        ("b.docx", "", "The lamp burns 5 hours."),
        ("c.pptx", "slide 1", "First, 7 doors."),
        ("c.pptx", "slide 2", "Then 9 gates."),
        ("d.html", "", "The **well** is deep."),
        ("e.md", "", "# Notes\n\nThe tower has 80 steps. It leans."),  # f.txt has the same text
    }
    assert read_alone(tmp_path / "all/a.pdf") == [
        ("page 1", "The mill weighs 14 kg."),
        ("page 2", "It was built in 1923."),
    ]
    assert "files of other kinds are not read (1): .png" in caplog.text
    slides = [(place, text.strip()) for place, text in read_alone(tmp_path / "all/c.pptx")]
    assert slides == [("slide 1", "# First, 7 doors."), ("slide 2", "# Then 9 gates.")]
    assert read_alone(tmp_path / "all/b.docx")[0][1].strip() == "The lamp burns 5 hours."


def test_editions_of_a_document_are_held_out_together(tmp_path: Path) -> None:
    for name in ("mill", "tower", "well"):
        text = [f"The {name} number {number} is {number + len(name)} m high." for number in range(9)]
        (tmp_path / f"{name}.txt").write_text(" ".join(text))
        (tmp_path / f"{name} again.html").write_text(f"<p>{'</p><p>'.join(text)}</p>")
        text[4] = "This stands in the second edition alone."
        (tmp_path / f"{name} 2.md").write_text("# Second edition\n\n" + "\n\n".join(text))
        (tmp_path / f"{name} short.txt").write_text(" ".join(text[:3]))
    documents = read_documents(tmp_path, 20)
    assert len(documents) == 9  # the same words in another kind of file count once
    names = [
        {document.file.split()[0].partition(".")[0] for document in part} for part in split_documents(documents, 0.3)
    ]
    assert [len(part) for part in names] == [2, 1] and not names[0] & names[1]


def test_tables_are_read_and_scripts_are_not(tmp_path: Path) -> None:
    word, slides = docx.Document(), pptx.Presentation()
    slide = slides.slides.add_slide(slides.slide_layouts[6])
    tables = {"Goods": word.add_table(2, 2), "Item": slide.shapes.add_table(2, 2, 0, 0, 999999, 999999).table}
    for name, table in tables.items():
        for place, text in enumerate((name, "Price", "Lamp", "14 coins")):
            table.cell(place // 2, place % 2).text = text
    word.save(str(tmp_path / "A.DOCX"))
    slides.save(str(tmp_path / "b.pptx"))
    rows = "<table><tr><th>Ware</th><th>Price</th></tr><tr><td>Lamp</td><td>14 coins</td></tr></table>"
    hidden = "<script>let x = 'evil'</script><style>p {color: red}</style><!-- evil -->"
    (tmp_path / "c.html").write_text(f"<html><head>{hidden}</head><body>{rows}{hidden}</body></html>")
    found = read_documents(tmp_path, 200)
    assert [document.file for document in found] == ["A.DOCX", "b.pptx", "c.html"]
    texts = [" ".join(passage.text for passage in document.passages) for document in found]
    assert all("| Lamp | 14 coins |" in text and "evil" not in text and "red" not in text for text in texts)


def test_files_that_cannot_be_read_are_all_named(tmp_path: Path) -> None:
    write_pdf(tmp_path / "locked.pdf", ["secret"], password="x")
    (tmp_path / "broken.docx").write_bytes(b"no zip")
    (tmp_path / "empty.txt").write_text(" \n")
    pptx.Presentation().save(str(tmp_path / "slides.pptx"))
    said = r"(?s)broken\.docx.*empty\.txt: has no text.*locked\.pdf: cannot be read.*slides\.pptx: has no text"
    with pytest.raises(TaskError, match=said):
        read_documents(tmp_path, 200)
