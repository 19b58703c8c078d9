"""Charts: plain functions from rows to an altair chart, one theme, one way into files and pages."""
