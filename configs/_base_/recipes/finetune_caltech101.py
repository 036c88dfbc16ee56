# Caltech-101 with the settings of GAB's appendix. Download it from
# https://data.caltech.edu/records/mzrjq-6wc02, and mmpretrain's lists of its
# training and test images, which it has not; with the background as a class.
_base_ = './finetune_sgd_200e.py'
model = dict(data_preprocessor=dict(num_classes=102), head=dict(num_classes=102))
dataset_type = 'Caltech101'
data_root = 'data/caltech-101'
train_dataloader = dict(dataset=dict(type=dataset_type, data_root=data_root, split='train'))
val_dataloader = dict(dataset=dict(type=dataset_type, data_root=data_root, split='test'))
test_dataloader = val_dataloader
