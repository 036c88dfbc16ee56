# What every config of panoptic segmentation shares.
_base_ = './mmdet.py'
visualizer = dict(type='bioattn_mm.PanopticVisualizer')
