"""The part of ASTune that runs in vLLM's own processes. Nothing else of ASTune is in this folder, which is on their
path."""

from __future__ import annotations

from typing import Any


class WeightsFromFolder:
    """Becomes a part of vLLM's worker (`--worker-extension-cls`), whose methods `/collective_rpc` calls by name."""

    def weights_from_folder(self, folder: str) -> None:
        """Take a whole model's weights. On a CPU the head computes with a packed copy of its weights, and where they
        are the embedding's, vLLM 0.32 does not pack them anew when they change."""
        worker: Any = self
        worker.reload_weights(weights_path=folder)
        head = worker.get_model().lm_head
        if "cpu_linear" in vars(head):
            head.quant_method.process_weights_after_loading(head)
