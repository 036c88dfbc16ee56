_base_ = './detection_dynamic.py'
ir_config = dict(output_names=['dets', 'labels', 'masks'], dynamic_axes=dict(masks={1: 'detections'}))
