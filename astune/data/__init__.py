"""Tasks made from a few examples or from documents, each with an answer that was checked.

`expand` varies seeds, `from_documents` asks about documents; both propose, screen, check and screen again (`grow`).
"""
