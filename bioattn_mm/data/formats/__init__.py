"""Own data: COCO, YOLO, Pascal VOC, label maps, class folders; what cannot be used raises an `InputError`."""
