"""What the command-line tools share: their arguments, the config of a run, miniature runs, and reports."""
