"""What the tools of tools/analysis share: models and pictures of a config, measures, drawing."""
