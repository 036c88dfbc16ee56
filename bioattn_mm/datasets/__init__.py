"""Transforms and samplers, and the generated miniature datasets (`mini`)."""
