"""A report on judges, as texts and as a page."""
