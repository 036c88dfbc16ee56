"""What the tools in tools/analysis compute: a config's backbone, its images, and the measures of a model."""
