# Stanford Cars with the settings of GAB's appendix. Download it from
# https://ai.stanford.edu/~jkrause/cars/car_dataset.html.
_base_ = './finetune_sgd_200e.py'
model = dict(data_preprocessor=dict(num_classes=196), head=dict(num_classes=196))
dataset_type = 'StanfordCars'
data_root = 'data/stanford-cars'
train_dataloader = dict(dataset=dict(type=dataset_type, data_root=data_root, split='train'))
val_dataloader = dict(dataset=dict(type=dataset_type, data_root=data_root, split='test'))
test_dataloader = val_dataloader
