# A traced TorchScript file.
ir_config = dict(type='torchscript', save_file='end2end.pt', input_names=['input'], input_shape=None)
backend_config = dict(type='torchscript')
