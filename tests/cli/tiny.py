"""Arguments for a run of about a second."""

TINY = (
    "--dataset", "digits", "--samples", "160", "--partition", "iid", "--clients", "3", "--models", "small_cnn",
    "--rounds", "2", "--quiet",
)  # fmt: skip
