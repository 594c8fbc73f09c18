"""What do products with weights take on this processor: PyTorch's own beside oneDNN's?

    .venv/bin/python benchmarks/products.py
    .venv/bin/python benchmarks/products.py --weights 1024x4096 --rows 1 64

"laid out" is oneDNN with the weight laid out for it before, as the sampler has it; "as it is" with the weight of
training. Enough weights of each shape take turns that no cache holds them. "% of memory" is the speed at which "laid
out" reads the weight, of what the cores read by summing 256 MB; with many rows the arithmetic is the limit, which is
the last column. ASTune takes oneDNN's on processors of AMD. On others this table says whether it should.
"""

from __future__ import annotations

import astune.backbone.local  # noqa: F401  # isort: skip  (before torch: it says how torch's threads wait)

import argparse
import os
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from bench_table import table_of
from floor import read_bandwidth
from rich.console import Console
from torch.nn import functional

from astune.backbone.local.model import products

WEIGHTS = ("128x384", "768x4608", "2304x768", "768x18000")
ROWS = (1, 4, 16, 64, 1024)
NUMBERS = 2**25
"""Of all weights that take turns: 128 MiB in float32."""
DTYPES = (torch.float32, torch.bfloat16)


def microseconds(product: Callable[[torch.Tensor], object], weights: Sequence[torch.Tensor], rounds: int) -> float:
    """The median of the mean over all weights."""
    found = []
    for _ in range(rounds + 1):  # the first is warm-up
        started = time.perf_counter()
        for weight in weights:
            product(weight)
        found.append((time.perf_counter() - started) / len(weights))
    return statistics.median(found[1:]) * 1e6


def measure(inputs: int, outputs: int, rows: int, dtype: torch.dtype, bandwidth: float, rounds: int) -> list[str]:
    states = torch.randn(rows, inputs).to(dtype)
    some = torch.randn(outputs, inputs).to(dtype)
    weights = [some.clone() for _ in range(max(4, NUMBERS // some.numel()))]
    laid_out = [torch.ops.mkldnn._reorder_linear_weight(weight, products.ROWS) for weight in weights]
    most = max(1, int(2**33 / (rows * some.numel())))  # products that take some seconds are not repeated for long
    turns = weights[:most]
    torchs = microseconds(lambda weight: functional.linear(states, weight), turns, rounds)
    as_it_is = microseconds(lambda weight: products._product(states, weight), turns, rounds)
    packed = microseconds(lambda weight: products._product(states, weight), laid_out[: len(turns)], rounds)
    layout = microseconds(lambda w: torch.ops.mkldnn._reorder_linear_weight(w, products.ROWS), turns, 1)
    return [
        f"{inputs} x {outputs}",
        str(dtype).removeprefix("torch."),
        str(rows),
        *(f"{each:,.0f}" for each in (torchs, as_it_is, packed, layout)),
        f"{torchs / as_it_is:.2f}",
        f"{torchs / packed:.2f}",
        f"{100 * some.nbytes / packed * 1e6 / bandwidth:.0f}",
        f"{2 * rows * some.numel() / packed / 1e3:,.0f}",
    ]


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", nargs="+", default=WEIGHTS, metavar="INPUTSxOUTPUTS")
    parser.add_argument("--rows", nargs="+", type=int, default=ROWS)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    bandwidth = read_bandwidth()
    described = Path("/proc/cpuinfo")
    named = [line.partition(": ")[2] for line in described.read_text().splitlines() if line.startswith("model name")]
    columns = ["weight", "", "rows", "PyTorch µs", "as it is", "laid out", "to lay it out", "times, as it is"]
    columns += ["times, laid out", "% of memory", "GFLOP/s"]
    rows = [
        measure(*map(int, weight.split("x")), count, dtype, bandwidth, options.rounds)
        for dtype in DTYPES
        for weight in options.weights
        for count in options.rows
    ]
    title = f"{named[0] if named else 'processor'}, {torch.get_num_threads()} threads; ASTune takes oneDNN's"
    title += f" for: {', '.join(sorted(map(str, products.by_onednn()))) or 'nothing'}"
    console = Console(width=170)
    console.print(f"torch {torch.__version__}, load {os.getloadavg()[0]:.1f}, memory {bandwidth / 1e9:.0f} GB/s")
    console.print(table_of(title, columns, rows, left=2))


if __name__ == "__main__":
    main()
