_base_ = ['./panoptic-seg.py', './onnx.py']
ir_config = dict(
    output_names=['cls_logits', 'mask_logits'],
    dynamic_axes=dict(input={2: 'height', 3: 'width'}, mask_logits={2: 'height', 3: 'width'}),
)
