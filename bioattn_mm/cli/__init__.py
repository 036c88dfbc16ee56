"""What the command-line tools share: their arguments, the start of a run, the dry run, trackers and reports."""
