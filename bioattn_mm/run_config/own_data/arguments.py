"""What the command line says of own data, and the folders that it may name."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from ...datasets.problem import Problem
from ...errors import InputError

LAYOUTS = """\
For a detector, annotations in COCO's format, one JSON file for each of train, val and test, in any of these places;
train, val (or valid, validation) and test are words in the name of the file or of its folder, in any case and with
numbers, here and in all formats below:

  DIR/annotations/instances_train.json     images in DIR/train, DIR/images/train, DIR/images or DIR
  DIR/train.json or DIR/train/*.json       the same, or beside the JSON (Roboflow: DIR/train/_annotations.coco.json)
  DIR/annotations.json or a JSON as DIR    a single one, whatever its name: training images

Or annotations in YOLO's format: DIR/data.yaml, or it as DIR, with names and the images of train, val and test, and a
text file for each image that has objects, with a line CLASS X Y WIDTH HEIGHT (the centre) or CLASS X1 Y1 X2 Y2 ...
for each, in shares of the image's width and height:

  DIR/images/train/1.jpg                   DIR/labels/train/1.txt
  DIR/train/images/1.jpg                   DIR/train/labels/1.txt
  DIR/classes.txt in place of data.yaml    one name a line (Label Studio); the same folders, or DIR/images, DIR/labels
  DIR/*.jpg, DIR/*.txt, DIR/classes.txt    all in one folder (labelImg)
  DIR/obj.data, which names lists          Darknet

Or in Pascal VOC's, in VOCdevkit/VOC2012 or DIR, with masks in SegmentationObject:

  DIR/JPEGImages, DIR/Annotations/*.xml    the splits in DIR/ImageSets/Main (of masks: Segmentation)
  DIR/train/*.jpg, DIR/train/*.xml         and valid, test in place of train (Roboflow)

For a segmentor, images of any type and label maps (PNG) of the same name; the folder of the label maps is named
masks, annotations, labels, ann_dir or SegmentationClass, that of the images images, img_dir or JPEGImages:

  DIR/images/train, DIR/masks/train        and val, test in place of train
  DIR/train/images, DIR/train/masks        the same
  DIR/images, DIR/masks                    training images
  DIR/JPEGImages, DIR/SegmentationClass    the splits in DIR/ImageSets/Segmentation, as in VOCdevkit/VOC2012

A pixel's value in a label map is the index of its class, 0 for the first, or 255 where it does not count. The names
are in DIR/classes.txt, one a line. With DIR/palette.txt (or labelmap.txt, label_colors.txt), one R G B NAME a line,
label maps may also be RGB images; the colours named "ignore" do not count, and classes.txt is not needed. VOC's own
classes are known.

For a classifier, a folder of images for each class, which has its name:

  DIR/train/CLASS                          and val, test in place of train
  DIR/CLASS                                training images
"""


@dataclass(frozen=True)
class DataArguments:
    """What the command line says of own data (see `ToolParser.add_data`).

    Attributes:
        data: Folder, JSON file of COCO's format or YAML file of YOLO's; the layouts are those of `LAYOUTS`.
        train_data: The training images alone, in place of those of `data`.
        val_data: The validation images alone, in place of those of `data`.
        reduce_zero_label: Whether 0 in a label map does not count, and class i is i + 1.
        problems: Where what is wrong is added that would otherwise end the reading: for a list of all.
        as_rgb: Whether images are read as RGB in 8 bits, whatever channels and depth their files have.
    """

    data: str | None = None
    train_data: str | None = None
    val_data: str | None = None
    reduce_zero_label: bool = False
    problems: list[Problem] | None = None
    as_rgb: bool = False

    @property
    def name(self) -> str:
        """Short name of the data, for a work dir: that of the folder, or of a file and its folder."""
        path = Path(self.train_data or self.data or self.val_data).resolve()
        return path.name if path.is_dir() else f'{path.parent.name}_{path.stem}'


def data_arguments(args: argparse.Namespace, problems: list[Problem] | None = None) -> DataArguments | None:
    """The arguments of `ToolParser.add_data`; None if there are none. `problems`: see `DataArguments`."""
    arguments = DataArguments(
        args.data, args.train_data, args.val_data, args.reduce_zero_label, problems, args.as_rgb
    )
    if args.data or args.train_data or args.val_data:
        return arguments
    if args.reduce_zero_label:
        raise InputError('--reduce-zero-label is for own data: name them with --data')
    if args.as_rgb:
        raise InputError('--as-rgb is for own data: name them with --data')
    return None
