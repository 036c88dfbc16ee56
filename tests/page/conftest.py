"""The page for a small model."""

import tempfile
from collections.abc import Iterator

import pytest

from bioattn_mm import Predictor
from bioattn_mm.page.explorer import Explorer
from bioattn_mm.page.server import TEMPORARY, serving

from ..analysis.small_backbones import save_segmentor


@pytest.fixture(scope='module')
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of the page for a small TransNeXt; what it stores is removed at the end."""
    folder = tmp_path_factory.mktemp('page')
    predictor = Predictor(*save_segmentor(folder, 'TransNeXt', bias_mode='interpolate', img_size=64), device='cpu')
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(tempfile, 'tempdir', str(folder))
        with serving(Explorer(predictor), 'small TransNeXt', '127.0.0.1', None, 2**20) as url:
            yield url
            assert [file for file in folder.glob(f'{TEMPORARY}*/**/*') if file.is_file()]
        assert not list(folder.glob(f'{TEMPORARY}*'))
