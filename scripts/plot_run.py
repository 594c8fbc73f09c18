"""Draws the learning curve of a run: python scripts/plot_run.py RUN_DIR out.svg [TITLE]"""

from __future__ import annotations

import sys
from pathlib import Path

from astune.monitor import RunDir, read_metrics
from astune.viewer import curve_svg


def main() -> None:
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    metrics = read_metrics(RunDir(Path(sys.argv[1])).metrics_path)
    Path(sys.argv[2]).write_text(curve_svg(metrics, *sys.argv[3:]), encoding="utf-8")


if __name__ == "__main__":
    main()
