# PACS, all but one domain to train on and that one to test on. VARS's paper has no settings of it: those of small
# data sets. Download it from https://sketchx.eecs.qmul.ac.uk/downloads, its folder kfold. For another domain set the
# three datasets' `target`: art_painting, cartoon, photo or sketch.
_base_ = './finetune_sgd_200e.py'
model = dict(data_preprocessor=dict(num_classes=7), head=dict(num_classes=7))
dataset_type = 'bioattn_mm.PACS'
data_root = 'data/pacs/kfold'
train_dataloader = dict(dataset=dict(type=dataset_type, data_root=data_root, target='sketch'))
val_dataloader = test_dataloader = dict(
    dataset=dict(type=dataset_type, data_root=data_root, target='sketch', split='test')
)
