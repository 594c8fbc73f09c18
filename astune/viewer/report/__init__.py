"""`report.html`: a run told in one page."""
