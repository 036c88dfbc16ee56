"""`python -m bioattn_mm.runtime MODEL.onnx IMAGE ...`."""

from .command import main

main()
