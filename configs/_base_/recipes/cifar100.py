# CIFAR-100 from random weights, its images resized to 224 x 224, with DeiT's recipe for ImageNet-1k.
# TransNeXt's paper names the data and not the recipe; clipping, weight decay and drop path are those of a
# config. Download the data from https://www.cs.toronto.edu/~kriz/cifar.html.
_base_ = './deit_in1k.py'
model = dict(data_preprocessor=dict(num_classes=100), head=dict(num_classes=100))
# The data set reads images itself.
train_dataset = dict(
    _delete_=True, type='CIFAR100', data_root='data/cifar100', split='train', pipeline=_base_.train_pipeline[1:]
)
test_dataset = dict(
    _delete_=True, type='CIFAR100', data_root='data/cifar100', split='test', pipeline=_base_.test_pipeline[1:]
)
train_dataloader = dict(dataset=train_dataset)
val_dataloader = dict(dataset=test_dataset)
test_dataloader = val_dataloader
tta_pipeline = _base_.tta_pipeline[1:]
