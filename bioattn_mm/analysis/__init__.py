"""What the tools of tools/analysis share: models and images of a config, measures, drawing."""
