"""Names and numbers of classes of ADE20K, COCO and ImageNet, in the order of the real datasets."""

# fmt: off
# Class i of ADE20K (150 classes) has the value i + 1 in the annotations; 0 is unlabelled.
ADE20K_CLASSES = (
    'wall', 'building', 'sky', 'floor', 'tree', 'ceiling', 'road', 'bed', 'windowpane', 'grass', 'cabinet',
    'sidewalk', 'person', 'earth', 'door', 'table', 'mountain', 'plant', 'curtain', 'chair', 'car', 'water',
    'painting', 'sofa', 'shelf', 'house', 'sea', 'mirror', 'rug', 'field', 'armchair', 'seat', 'fence', 'desk',
    'rock', 'wardrobe', 'lamp', 'bathtub', 'railing', 'cushion', 'base', 'box', 'column', 'signboard',
    'chest of drawers', 'counter', 'sand', 'sink', 'skyscraper', 'fireplace', 'refrigerator', 'grandstand', 'path',
    'stairs', 'runway', 'case', 'pool table', 'pillow', 'screen door', 'stairway', 'river', 'bridge', 'bookcase',
    'blind', 'coffee table', 'toilet', 'flower', 'book', 'hill', 'bench', 'countertop', 'stove', 'palm',
    'kitchen island', 'computer', 'swivel chair', 'boat', 'bar', 'arcade machine', 'hovel', 'bus', 'towel', 'light',
    'truck', 'tower', 'chandelier', 'awning', 'streetlight', 'booth', 'television receiver', 'airplane', 'dirt track',
    'apparel', 'pole', 'land', 'bannister', 'escalator', 'ottoman', 'bottle', 'buffet', 'poster', 'stage', 'van',
    'ship', 'fountain', 'conveyer belt', 'canopy', 'washer', 'plaything', 'swimming pool', 'stool', 'barrel',
    'basket', 'waterfall', 'tent', 'bag', 'minibike', 'cradle', 'oven', 'ball', 'food', 'step', 'tank', 'trade name',
    'microwave', 'pot', 'animal', 'bicycle', 'lake', 'dishwasher', 'screen', 'blanket', 'sculpture', 'hood', 'sconce',
    'vase', 'traffic light', 'tray', 'ashcan', 'fan', 'pier', 'crt screen', 'plate', 'monitor', 'bulletin board',
    'shower', 'radiator', 'glass', 'clock', 'flag',
)

# Those of ADE20K without instances; the 100 others have some. Class i of the 100 has the value i + 1 in the files of
# instances.
ADE20K_STUFF = (
    'wall', 'building', 'sky', 'floor', 'tree', 'ceiling', 'road', 'grass', 'sidewalk', 'earth', 'mountain', 'plant',
    'water', 'house', 'sea', 'rug', 'field', 'rock', 'base', 'sand', 'skyscraper', 'grandstand', 'path', 'runway',
    'stairway', 'river', 'bridge', 'blind', 'hill', 'bar', 'hovel', 'tower', 'dirt track', 'land', 'escalator',
    'buffet', 'poster', 'stage', 'conveyer belt', 'canopy', 'swimming pool', 'waterfall', 'tent', 'cradle', 'tank',
    'lake', 'blanket', 'pier', 'crt screen', 'shower',
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
    'hovel': 'hovel, hut, hutch, shack, shanty', 'awning': 'awning, sunshade, sunblind', 'streetlight': 'street lamp',
    'television receiver': 'tv', 'apparel': 'clothes', 'land': 'land, ground, soil',
    'bannister': 'bannister, banister, balustrade, balusters, handrail',
    'escalator': 'escalator, moving staircase, moving stairway', 'ottoman': 'ottoman, pouf, pouffe, puff, hassock',
    'buffet': 'buffet, counter, sideboard', 'poster': 'poster, posting, placard, notice, bill, card',
    'conveyer belt': 'conveyer belt, conveyor belt, conveyer, conveyor, transporter',
    'washer': 'washer, automatic washer, washing machine', 'plaything': 'plaything, toy', 'swimming pool': 'pool',
    'barrel': 'barrel, cask', 'basket': 'basket, handbasket', 'waterfall': 'falls', 'minibike': 'minibike, motorbike',
    'food': 'food, solid food', 'step': 'step, stair', 'tank': 'tank, storage tank', 'blanket': 'blanket, cover',
    'hood': 'hood, exhaust hood', 'ashcan': 'trash can', 'glass': 'glass, drinking glass',
}

# The 53 categories without instances that COCO's panoptic segmentation adds, by their ids.
COCO_STUFF = {
    92: 'banner', 93: 'blanket', 95: 'bridge', 100: 'cardboard', 107: 'counter', 109: 'curtain',
    112: 'door-stuff', 118: 'floor-wood', 119: 'flower', 122: 'fruit', 125: 'gravel', 128: 'house',
    130: 'light', 133: 'mirror-stuff', 138: 'net', 141: 'pillow', 144: 'platform', 145: 'playingfield',
    147: 'railroad', 148: 'river', 149: 'road', 151: 'roof', 154: 'sand', 155: 'sea', 156: 'shelf', 159: 'snow',
    161: 'stairs', 166: 'tent', 168: 'towel', 171: 'wall-brick', 175: 'wall-stone', 176: 'wall-tile',
    177: 'wall-wood', 178: 'water-other', 180: 'window-blind', 181: 'window-other', 184: 'tree-merged',
    185: 'fence-merged', 186: 'ceiling-merged', 187: 'sky-other-merged', 188: 'cabinet-merged',
    189: 'table-merged', 190: 'floor-other-merged', 191: 'pavement-merged', 192: 'mountain-merged',
    193: 'grass-merged', 194: 'dirt-merged', 195: 'paper-merged', 196: 'food-other-merged',
    197: 'building-other-merged', 198: 'rock-merged', 199: 'wall-other-merged', 200: 'rug-merged',
}
# Those of ImageNet's 1000 classes that are drawn: the WordNet ID, which is the name of the folder, and the label.
IMAGENET_CLASSES = {
    'balloon': ('n02782093', 417), 'beacon': ('n02814860', 437), 'flagpole': ('n03355925', 557),
    'soccer ball': ('n04254680', 805), 'sports car': ('n04285008', 817), 'umbrella': ('n04507155', 879),
    'yawl': ('n04612504', 914), 'street sign': ('n06794110', 919), 'traffic light': ('n06874185', 920),
    'daisy': ('n11939491', 985),
}
# fmt: on
