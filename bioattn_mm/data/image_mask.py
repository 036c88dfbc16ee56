"""A data set of images and label maps in folders."""

from pathlib import Path

from mmseg.datasets import BaseSegDataset

from ..registry import DATASETS


@DATASETS.register_module()
class ImageMaskDataset(BaseSegDataset):
    """Images of any file types, each with the label map of the same name; mmseg's own takes one type for all.

    The label maps are read by `CheckedLoadAnnotations`, which also turns colours into classes.

    Args:
        ann_file: Text file with one image a line, such as `a.jpg`, a path below `data_prefix['img_path']`; its label
            map is `a` with `seg_map_suffix` below `seg_map_path`.
        label_colours: R, G and B in 0 to 255 by class, if the label maps are RGB images; None: their pixels are
            the classes. Colours after those of the classes are pixels that do not count.
        **kwargs: Those of `BaseSegDataset`.
    """

    def __init__(
        self, ann_file: str, label_colours: list[tuple[int, int, int]] | None = None, **kwargs: object
    ) -> None:
        self.label_colours = label_colours
        super().__init__(ann_file=ann_file, **kwargs)

    def load_data_list(self) -> list[dict]:
        # Names may be in another encoding, and have any characters but line feeds.
        lines = Path(self.ann_file).read_bytes().decode('utf-8', 'surrogateescape').split('\n')
        images, masks = (Path(self.data_prefix[key]) for key in ('img_path', 'seg_map_path'))
        return [
            dict(
                img_path=str(images / name),
                seg_map_path=str((masks / name).with_suffix(self.seg_map_suffix)),
                label_map=self.label_map,
                reduce_zero_label=self.reduce_zero_label,
                label_colours=self.label_colours,
                num_classes=len(self.metainfo['classes']),
                seg_fields=[],
            )
            for name in (line.removesuffix('\r') for line in lines)
            if name.strip()
        ]
