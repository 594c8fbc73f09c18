"""Tasks made from a few (`expand`) or from documents (`from_documents`), each with an answer that was checked."""
