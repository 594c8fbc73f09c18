"""Two answers to one request, shown to raters: where pairs come from, the page, the votes and how raters agree."""
