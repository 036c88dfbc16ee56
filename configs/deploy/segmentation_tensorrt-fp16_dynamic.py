# Segmentation with TensorRT in half precision; images of the sizes below, one at a time.
_base_ = ['_base_/segmentation_dynamic.py', '_base_/tensorrt_fp16.py']
backend_config = dict(
    model_inputs=[
        dict(
            input_shapes=dict(
                input=dict(min_shape=[1, 3, 224, 224], opt_shape=[1, 3, 512, 512], max_shape=[1, 3, 2048, 2048])
            )
        )
    ]
)
