"""Export through `torch.export`: `.pt2`, ONNX for onnxruntime and OpenVINO, and packages of AOTInductor."""
