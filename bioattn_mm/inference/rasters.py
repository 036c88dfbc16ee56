"""TIFF files, GeoTIFF among them, that are larger than memory: windows of them are read and written, by rasterio."""

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import ExifTags
from PIL.TiffImagePlugin import ImageFileDirectory_v2

from ..errors import InputError
from ..files import atomic_path
from ..runtime.channels import ImageKind
from ..runtime.drawing import MAX_PIXELS

SUFFIXES = ('.tif', '.tiff')
# Rows that are written at a time, a multiple of the sides of a file's tiles.
STRIP = 512


class Raster:
    """A TIFF file of which windows are read, as BGR images or with all channels.

    Args:
        path: The file, with one or at least three channels of 8 bits, or with a palette.
        kind: Channels and dtype that it must have instead, which are then all read in the order of the file.

    Attributes:
        shape: (height, width, channels), the first two in pixels.
        reduced: The whole image with at most `runtime.drawing.MAX_PIXELS` pixels, BGR, uint8 (h, w, 3), or of `kind`.

    Raises:
        InputError: The file has other channels, is turned by a tag, or cannot be decoded; of a window when that is
            read.
    """

    def __init__(self, path: str | Path, kind: ImageKind | None = None) -> None:
        import rasterio

        self._path, self._kind = path, kind
        self._file = rasterio.open(path)
        count, dtypes = self._file.count, set(self._file.dtypes)
        if kind is not None and (count, dtypes) != (kind.channels, {kind.dtype}):
            raise InputError(f'{path} has {count} channels of {", ".join(sorted(dtypes))}, expected {kind}')
        if kind is None and (count == 2 or dtypes != {'uint8'}):
            raise InputError(
                f'{path} has {count} channels of {", ".join(sorted(dtypes))}: by windows, files of one or at least '
                'three channels of uint8 are read'
            )
        self._colors = None
        if kind is None:
            self._look_at_colors()
        self._bands = [3, 2, 1] if count >= 3 else [1, 1, 1]
        if kind is not None:
            self._bands = [*range(1, count + 1)]
        self.shape = (self._file.height, self._file.width, len(self._bands))
        factor = min(1, (MAX_PIXELS / (self.shape[0] * self.shape[1])) ** 0.5)
        size = [max(1, int(length * factor)) for length in self.shape[:2]]
        self.reduced = self._image(out_shape=(len(self._bands), *size), resampling=rasterio.enums.Resampling.average)

    def _look_at_colors(self) -> None:
        """Read the palette, if there is one, and refuse what neither that nor the values say."""
        orientation, bits = _orientation(self._path), self._file.tags(1, ns='IMAGE_STRUCTURE').get('NBITS', '8')
        if orientation in range(2, 9):  # others mean nothing
            raise InputError(
                f'{self._path} has the orientation tag {orientation}, expected 1: turn its pixels, such as with '
                'magick FILE -auto-orient NEW'
            )
        # GDAL has one, too, for files of one bit a pixel, and for those in which 0 is white.
        if self._file.colorinterp[0].name == 'palette':
            self._colors = np.zeros((256, 3), np.uint8)
            for index, color in self._file.colormap(1).items():
                self._colors[index] = color[2::-1]
        elif bits != '8':
            raise InputError(
                f'{self._path} has {bits} bits a channel, expected 8: convert it, such as with gdal_translate -scale '
                f'0 {2 ** int(bits) - 1} 0 255 -co NBITS=8 FILE NEW'
            )

    def __getitem__(self, window: tuple[slice, slice]) -> np.ndarray:
        rows, columns = window
        return self._image(window=((rows.start, rows.stop), (columns.start, columns.stop)))

    def _image(self, **options: object) -> np.ndarray:
        import rasterio

        try:
            image = np.ascontiguousarray(self._file.read(self._bands, **options).transpose(1, 2, 0))
        except rasterio.errors.RasterioIOError as error:
            raise InputError(f'cannot decode the image {self._path}: damaged') from error
        if self._colors is not None:
            return self._colors[image[..., 0]]
        return image if self._kind is None else self._kind.check(image, str(self._path))

    def write_labels(
        self, path: Path, labels: np.ndarray, relabel: Callable[[np.ndarray], np.ndarray], palette: list
    ) -> None:
        """Write a label map where the image is on Earth: one compressed channel with the palette of the classes.

        Args:
            path: The new file.
            labels: (H, W), maybe in a file.
            relabel: What is written of some rows of it.
            palette: R, G and B of each class.
        """
        import rasterio

        profile = dict(
            driver='GTiff', count=1, height=self.shape[0], width=self.shape[1], dtype=relabel(labels[:1]).dtype,
            crs=self._file.crs, transform=self._file.transform, compress='deflate', bigtiff='if_safer',
            tiled=True, blockxsize=256, blockysize=256,
        )  # fmt: skip
        with atomic_path(path) as partial, rasterio.open(partial, 'w', **profile) as file:
            if profile['dtype'] == np.uint8:
                file.write_colormap(1, {index: tuple(color) for index, color in enumerate(palette)})
            for top in range(0, self.shape[0], STRIP):
                rows = relabel(labels[top : top + STRIP])
                file.write(rows, 1, window=((top, top + len(rows)), (0, self.shape[1])))


def _orientation(path: str | Path) -> int:
    """The orientation tag of a TIFF file, which GDAL does not give: 1 if a viewer shows the pixels as they lie."""
    with open(path, 'rb') as file:
        start = file.read(16)
        if start.startswith(b'MM\0+'):  # BigTIFF of this byte order, which Pillow does not read
            return 1
        tags = ImageFileDirectory_v2(start if start[2] == 43 else start[:8])
        file.seek(tags.next)
        tags.load(file)
        return tags.get(ExifTags.Base.Orientation, 1)


def is_raster(path: object) -> bool:
    """Whether a file is a TIFF of more pixels than are drawn, which rasterio is there to read by windows."""
    if not isinstance(path, (str, Path)) or Path(path).suffix.lower() not in SUFFIXES or not Path(path).is_file():
        return False
    if find_spec('rasterio') is None:
        return False
    import rasterio

    try:
        with rasterio.open(path) as file:
            return file.height * file.width > MAX_PIXELS
    except rasterio.errors.RasterioIOError:
        return False  # what reads images says why it cannot be read


def blocks(height: int, width: int, side: int, margin: int) -> Iterator[tuple[tuple, tuple, tuple]]:
    """Blocks that an image is cut into, each with a margin around it, or at the border more on the other side.

    With their margins all have the same size, which a pipeline resizes by the same factor.

    Yields:
        Rows and columns of a block in the image, of the block with its margin, and of the block in that.
    """
    for top in range(0, height, side):
        for left in range(0, width, side):
            own, outer, inner = [], [], []
            for start, length in ((top, height), (left, width)):
                end, outer_side = min(start + side, length), side + 2 * margin
                first = max(0, min(start - margin, length - outer_side))
                own.append(slice(start, end))
                outer.append(slice(first, min(first + outer_side, length)))
                inner.append(slice(start - first, end - first))
            yield tuple(own), tuple(outer), tuple(inner)
