# Half precision, 4 GiB of workspace; a config adds the range of input sizes.
backend_config = dict(type='tensorrt', common_config=dict(fp16_mode=True, max_workspace_size=1 << 32))
