# ConViT-Small on the first 100 classes of ImageNet-1k (ConViT, fig. 8). The figure varies `locality_strength` and
# `local_up_to_layer`, the number of GPSA layers, of the backbone.
# Weights: random.
_base_ = '../convit-small_8xb128_in1k.py'
model = dict(data_preprocessor=dict(num_classes=100), head=dict(num_classes=100))
dataset_type = 'bioattn_mm.imagenet_first_classes'
train_dataloader = dict(dataset=dict(type=dataset_type, number=100))
val_dataloader = dict(dataset=dict(type=dataset_type, number=100))
test_dataloader = val_dataloader
