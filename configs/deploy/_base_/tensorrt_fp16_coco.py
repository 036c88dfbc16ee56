# Half precision; images of these sizes, one at a time.
_base_ = './tensorrt_fp16.py'
backend_config = dict(
    model_inputs=[
        dict(
            input_shapes=dict(
                input=dict(min_shape=[1, 3, 320, 320], opt_shape=[1, 3, 800, 1344], max_shape=[1, 3, 1344, 1344])
            )
        )
    ]
)
