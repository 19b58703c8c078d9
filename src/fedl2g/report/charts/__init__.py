"""Charts: plain functions from rows to an altair chart, with one theme and one renderer for files and pages."""
