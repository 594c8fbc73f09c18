"""A run to look at: the report when it is over, the page of all its episodes at any time, its curve as a picture."""

from astune.viewer.charts import curve_svg
from astune.viewer.page import write_report, write_view

__all__ = ["curve_svg", "write_report", "write_view"]
