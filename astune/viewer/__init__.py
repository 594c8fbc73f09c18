"""What is left to look at when a run is over: one HTML page, and its curve as a picture."""

from astune.viewer.charts import curve_svg
from astune.viewer.report import write_report

__all__ = ["curve_svg", "write_report"]
