# Caltech-101 as in the authors' train.py of GAB: published parts together, split at random. Download it from
# https://data.caltech.edu/records/mzrjq-6wc02, and mmpretrain's lists of its training and test images, which it
# has not; with the background as a class.
_base_ = './finetune_sgd_200e.py'
model = dict(data_preprocessor=dict(num_classes=102), head=dict(num_classes=102))
data_root = 'data/caltech-101'
train_dataloader = val_dataloader = test_dataloader = dict(
    dataset=dict(
        type='bioattn_mm.RandomPart',
        data_root=data_root,
        parts=[dict(type='Caltech101', split=split) for split in ('train', 'test')],
    )
)
