"""Names and numbers of the classes of ADE20K, COCO and ImageNet, in the order of the real datasets."""

# fmt: off
# Class i of ADE20K (150 classes) has the value i + 1 in the annotations; 0 is unlabelled.
ADE20K_CLASSES = (
    'wall', 'building', 'sky', 'floor', 'tree', 'ceiling', 'road', 'bed', 'windowpane', 'grass',
    'cabinet', 'sidewalk', 'person', 'earth', 'door', 'table', 'mountain', 'plant', 'curtain', 'chair',
    'car', 'water', 'painting', 'sofa', 'shelf', 'house', 'sea', 'mirror', 'rug', 'field', 'armchair',
    'seat', 'fence', 'desk', 'rock', 'wardrobe', 'lamp', 'bathtub', 'railing', 'cushion', 'base', 'box',
    'column', 'signboard', 'chest of drawers', 'counter', 'sand', 'sink', 'skyscraper', 'fireplace',
    'refrigerator', 'grandstand', 'path', 'stairs', 'runway', 'case', 'pool table', 'pillow',
    'screen door', 'stairway', 'river', 'bridge', 'bookcase', 'blind', 'coffee table', 'toilet', 'flower',
    'book', 'hill', 'bench', 'countertop', 'stove', 'palm', 'kitchen island', 'computer', 'swivel chair',
    'boat', 'bar', 'arcade machine', 'hovel', 'bus', 'towel', 'light', 'truck', 'tower', 'chandelier',
    'awning', 'streetlight', 'booth', 'television receiver', 'airplane', 'dirt track', 'apparel', 'pole',
    'land', 'bannister', 'escalator', 'ottoman', 'bottle', 'buffet', 'poster', 'stage', 'van', 'ship',
    'fountain', 'conveyer belt', 'canopy', 'washer', 'plaything', 'swimming pool', 'stool', 'barrel',
    'basket', 'waterfall', 'tent', 'bag', 'minibike', 'cradle', 'oven', 'ball', 'food', 'step', 'tank',
    'trade name', 'microwave', 'pot', 'animal', 'bicycle', 'lake', 'dishwasher', 'screen', 'blanket',
    'sculpture', 'hood', 'sconce', 'vase', 'traffic light', 'tray', 'ashcan', 'fan', 'pier', 'crt screen',
    'plate', 'monitor', 'bulletin board', 'shower', 'radiator', 'glass', 'clock', 'flag',
)

# Those of ADE20K without instances; the 100 others have some. Class i of the 100 has the value i + 1 in the files of
# instances.
ADE20K_STUFF = (
    'wall', 'building', 'sky', 'floor', 'tree', 'ceiling', 'road', 'grass', 'sidewalk', 'earth', 'mountain',
    'plant', 'water', 'house', 'sea', 'rug', 'field', 'rock', 'base', 'sand', 'skyscraper', 'grandstand',
    'path', 'runway', 'stairway', 'river', 'bridge', 'blind', 'hill', 'bar', 'hovel', 'tower', 'dirt track',
    'land', 'escalator', 'buffet', 'poster', 'stage', 'conveyer belt', 'canopy', 'swimming pool',
    'waterfall', 'tent', 'cradle', 'tank', 'lake', 'blanket', 'pier', 'crt screen', 'shower',
)
# Names that are longer or others in annotations of panoptic segmentation.
ADE20K_PANOPTIC_NAMES = {
    'road': 'road, route', 'windowpane': 'window', 'sidewalk': 'sidewalk, pavement', 'earth': 'earth, ground',
    'mountain': 'mountain, mount', 'painting': 'painting, picture', 'rock': 'rock, stone',
    'wardrobe': 'wardrobe, closet, press', 'bathtub': 'tub', 'railing': 'rail', 'base': 'base, pedestal, stand',
    'column': 'column, pillar', 'signboard': 'signboard, sign',
    'chest of drawers': 'chest of drawers, chest, bureau, dresser', 'refrigerator': 'refrigerator, icebox',
    'grandstand': 'grandstand, covered stand', 'case': 'case, display case, showcase, vitrine',
    'pool table': 'pool table, billiard table, snooker table', 'screen door': 'screen door, screen',
    'stairway': 'stairway, staircase', 'bridge': 'bridge, span', 'blind': 'blind, screen',
    'toilet': 'toilet, can, commode, crapper, pot, potty, stool, throne', 'palm': 'palm, palm tree',
    'hovel': 'hovel, hut, hutch, shack, shanty', 'awning': 'awning, sunshade, sunblind',
    'streetlight': 'street lamp', 'television receiver': 'tv', 'apparel': 'clothes',
    'land': 'land, ground, soil', 'bannister': 'bannister, banister, balustrade, balusters, handrail',
    'escalator': 'escalator, moving staircase, moving stairway', 'ottoman': 'ottoman, pouf, pouffe, puff, hassock',
    'buffet': 'buffet, counter, sideboard', 'poster': 'poster, posting, placard, notice, bill, card',
    'conveyer belt': 'conveyer belt, conveyor belt, conveyer, conveyor, transporter',
    'washer': 'washer, automatic washer, washing machine', 'plaything': 'plaything, toy',
    'swimming pool': 'pool', 'barrel': 'barrel, cask', 'basket': 'basket, handbasket', 'waterfall': 'falls',
    'minibike': 'minibike, motorbike', 'food': 'food, solid food', 'step': 'step, stair',
    'tank': 'tank, storage tank', 'blanket': 'blanket, cover', 'hood': 'hood, exhaust hood',
    'ashcan': 'trash can', 'glass': 'glass, drinking glass',
}

# COCO's 80 categories by supercategory: {id: name}. The ids have gaps.
COCO_CATEGORIES = {
    'person': {1: 'person'},
    'vehicle': {
        2: 'bicycle', 3: 'car', 4: 'motorcycle', 5: 'airplane', 6: 'bus', 7: 'train', 8: 'truck',
        9: 'boat',
    },
    'outdoor': {10: 'traffic light', 11: 'fire hydrant', 13: 'stop sign', 14: 'parking meter', 15: 'bench'},
    'animal': {
        16: 'bird', 17: 'cat', 18: 'dog', 19: 'horse', 20: 'sheep', 21: 'cow', 22: 'elephant', 23: 'bear',
        24: 'zebra', 25: 'giraffe',
    },
    'accessory': {27: 'backpack', 28: 'umbrella', 31: 'handbag', 32: 'tie', 33: 'suitcase'},
    'sports': {
        34: 'frisbee', 35: 'skis', 36: 'snowboard', 37: 'sports ball', 38: 'kite', 39: 'baseball bat',
        40: 'baseball glove', 41: 'skateboard', 42: 'surfboard', 43: 'tennis racket',
    },
    'kitchen': {44: 'bottle', 46: 'wine glass', 47: 'cup', 48: 'fork', 49: 'knife', 50: 'spoon', 51: 'bowl'},
    'food': {
        52: 'banana', 53: 'apple', 54: 'sandwich', 55: 'orange', 56: 'broccoli', 57: 'carrot',
        58: 'hot dog', 59: 'pizza', 60: 'donut', 61: 'cake',
    },
    'furniture': {62: 'chair', 63: 'couch', 64: 'potted plant', 65: 'bed', 67: 'dining table', 70: 'toilet'},
    'electronic': {72: 'tv', 73: 'laptop', 74: 'mouse', 75: 'remote', 76: 'keyboard', 77: 'cell phone'},
    'appliance': {78: 'microwave', 79: 'oven', 80: 'toaster', 81: 'sink', 82: 'refrigerator'},
    'indoor': {
        84: 'book', 85: 'clock', 86: 'vase', 87: 'scissors', 88: 'teddy bear', 89: 'hair drier',
        90: 'toothbrush',
    },
}
# The 53 categories without instances that panoptic segmentation adds: {id: (supercategory, name)}.
COCO_STUFF = {
    92: ('textile', 'banner'), 93: ('textile', 'blanket'), 95: ('building', 'bridge'),
    100: ('raw-material', 'cardboard'), 107: ('furniture-stuff', 'counter'), 109: ('textile', 'curtain'),
    112: ('furniture-stuff', 'door-stuff'), 118: ('floor', 'floor-wood'), 119: ('plant', 'flower'),
    122: ('food-stuff', 'fruit'), 125: ('ground', 'gravel'), 128: ('building', 'house'),
    130: ('furniture-stuff', 'light'), 133: ('furniture-stuff', 'mirror-stuff'), 138: ('structural', 'net'),
    141: ('textile', 'pillow'), 144: ('ground', 'platform'), 145: ('ground', 'playingfield'),
    147: ('ground', 'railroad'), 148: ('water', 'river'), 149: ('ground', 'road'), 151: ('building', 'roof'),
    154: ('ground', 'sand'), 155: ('water', 'sea'), 156: ('furniture-stuff', 'shelf'), 159: ('ground', 'snow'),
    161: ('furniture-stuff', 'stairs'), 166: ('building', 'tent'), 168: ('textile', 'towel'),
    171: ('wall', 'wall-brick'), 175: ('wall', 'wall-stone'), 176: ('wall', 'wall-tile'),
    177: ('wall', 'wall-wood'), 178: ('water', 'water-other'), 180: ('window', 'window-blind'),
    181: ('window', 'window-other'), 184: ('plant', 'tree-merged'), 185: ('structural', 'fence-merged'),
    186: ('ceiling', 'ceiling-merged'), 187: ('sky', 'sky-other-merged'),
    188: ('furniture-stuff', 'cabinet-merged'), 189: ('furniture-stuff', 'table-merged'),
    190: ('floor', 'floor-other-merged'), 191: ('ground', 'pavement-merged'), 192: ('solid', 'mountain-merged'),
    193: ('plant', 'grass-merged'), 194: ('ground', 'dirt-merged'), 195: ('raw-material', 'paper-merged'),
    196: ('food-stuff', 'food-other-merged'), 197: ('building', 'building-other-merged'),
    198: ('solid', 'rock-merged'), 199: ('wall', 'wall-other-merged'), 200: ('textile', 'rug-merged'),
}
# Those of ImageNet's 1000 classes that are drawn: the WordNet ID, which is the name of the folder, and the label.
IMAGENET_CLASSES = {
    'balloon': ('n02782093', 417), 'beacon': ('n02814860', 437), 'flagpole': ('n03355925', 557),
    'soccer ball': ('n04254680', 805), 'sports car': ('n04285008', 817), 'umbrella': ('n04507155', 879),
    'yawl': ('n04612504', 914), 'street sign': ('n06794110', 919), 'traffic light': ('n06874185', 920),
    'daisy': ('n11939491', 985),
}
# fmt: on
