"""What was installed: the configs and tools, and the packages that only some tools need.

The configs and tools are in `bioattn_mm/.mim`, where `mim` looks for them, too. In a checkout it links to them.
"""

from difflib import get_close_matches
from pathlib import Path

from ..errors import InputError

FOLDER = (Path(__file__).parents[1] / '.mim').absolute()
CONFIGS = FOLDER / 'configs'

# The extras of bioattn_mm and the packages that they install, by the names under which these are imported.
PACKAGES = dict(
    detection='mmcv mmdet pycocotools msgspec',
    segmentation='mmseg',
    classification='mmpretrain',
    analysis='imagecorruptions lmfit',
    deploy='aenum grpc mmdeploy multiprocess onnx onnxruntime onnxscript onnxslim',
    runtime='openvino',
    evaluation='faster_coco_eval',
    tiff='tifffile imagecodecs',
    demo='gradio',
    tensorboard='tensorboard',
    log='wandb mlflow sqlalchemy alembic',
)
# The extra that installs a package.
EXTRAS = {package: extra for extra, packages in PACKAGES.items() for package in packages.split()}


def find_config(name: str) -> str:
    """The path of a config: a file, or one of this package by its path below configs/, or by its file name alone.

    The path may have 'configs/' before it and '.py' behind it. A name of no config is returned as it is.

    Raises:
        InputError: Several configs have that file name.
    """
    if Path(name).is_file():
        return name
    wanted = name.removeprefix('configs/').removesuffix('.py') + '.py'
    if (CONFIGS / wanted).is_file():
        return str((CONFIGS / wanted).resolve())
    found = sorted(path for path in CONFIGS.rglob('*.py') if path.name == wanted)
    if len(found) > 1:
        names = ', '.join(str(path.relative_to(CONFIGS).with_suffix('')) for path in found)
        raise InputError(f'several configs are named {name}: expected one of {names}')
    return str(found[0].resolve()) if found else name


def similar_configs(name: str) -> list[str]:
    """The configs of this package that are most like a name: their paths below configs/."""
    paths = sorted(str(path.relative_to(CONFIGS).with_suffix('')) for path in CONFIGS.glob('[!_]*/*.py'))
    wanted = name.removeprefix('configs/').removesuffix('.py')
    names = {path: path if '/' in wanted else Path(path).name for path in paths}
    like = get_close_matches(wanted, set(names.values()))
    return [path for path in paths if names[path] in like]


def find_configs(name: str) -> list[str]:
    """The paths of the configs in a folder, also one below configs/; another name is that of a single config.

    Raises:
        InputError: The folder has no configs, or several configs have that file name.
    """
    installed = CONFIGS / name.removeprefix('configs/')
    folder = next((path for path in (Path(name), installed) if path.is_dir()), None)
    if folder is None:
        return [find_config(name)]
    found = sorted(str(path) for path in folder.glob('*.py'))
    if not found:
        raise InputError(f'there are no configs in the folder {name}: expected files such as NAME.py')
    return found


def how_to_install(error: ImportError) -> str | None:
    """One line on how to get the package whose lack raised an error; None if it is of no extra."""
    package = (error.name or '').partition('.')[0]
    if package not in EXTRAS:
        return None
    line = f"this needs {package}, which is not installed: pip install 'bioattn_mm[{EXTRAS[package]}]'"
    # mmdeploy requires mmengine, which pip would install over onedl-mmengine.
    return line + ' && pip install --no-deps mmdeploy-protobuf-upgrade' * (EXTRAS[package] == 'deploy')
