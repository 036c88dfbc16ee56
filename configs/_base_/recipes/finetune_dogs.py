# Stanford Dogs with the settings of GAB's appendix. Download it from
# http://vision.stanford.edu/aditya86/ImageNetDogs.
_base_ = './finetune_sgd_200e.py'
model = dict(data_preprocessor=dict(num_classes=120), head=dict(num_classes=120))
dataset_type = 'bioattn_mm.StanfordDogs'
data_root = 'data/stanford-dogs'
train_dataloader = dict(dataset=dict(type=dataset_type, data_root=data_root, split='train'))
val_dataloader = dict(dataset=dict(type=dataset_type, data_root=data_root, split='test'))
test_dataloader = val_dataloader
