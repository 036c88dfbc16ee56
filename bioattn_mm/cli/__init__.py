"""What the command-line tools share: their arguments, messages and reports, and how their processes start."""
