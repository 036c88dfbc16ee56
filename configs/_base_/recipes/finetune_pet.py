# Oxford-IIIT Pet with the settings of GAB's appendix. Download it from
# https://www.robots.ox.ac.uk/~vgg/data/pets.
_base_ = './finetune_sgd_200e.py'
model = dict(data_preprocessor=dict(num_classes=37), head=dict(num_classes=37))
dataset_type = 'OxfordIIITPet'
data_root = 'data/oxford-iiit-pet'
train_dataloader = dict(dataset=dict(type=dataset_type, data_root=data_root, split='trainval'))
val_dataloader = dict(dataset=dict(type=dataset_type, data_root=data_root, split='test'))
test_dataloader = val_dataloader
