"""What a Runner needs on top of mmengine: input checks, the miniature run, contact sheets."""
