"""What was installed: the configs and tools, and the packages that only some tools need.

The configs and tools are in `bioattn_mm/.mim`, where `mim` looks for them, too. In a checkout it links to them.
"""

from pathlib import Path

from ..errors import InputError

FOLDER = (Path(__file__).parents[1] / '.mim').absolute()

# The extras of bioattn_mm that install packages, by the name under which these are imported.
EXTRAS = dict(
    mmcv='detection',
    mmdet='detection',
    pycocotools='detection',
    msgspec='detection',
    mmseg='segmentation',
    mmpretrain='classification',
    imagecorruptions='analysis',
    lmfit='analysis',
    rasterio='raster',
    aenum='deploy',
    grpc='deploy',
    mmdeploy='deploy',
    multiprocess='deploy',
    onnx='deploy',
    onnxruntime='deploy',
    onnxscript='deploy',
    onnxslim='deploy',
    openvino='runtime',
    faster_coco_eval='evaluation',
    tifffile='tiff',
    imagecodecs='tiff',
    gradio='demo',
    deepspeed='deepspeed',
    tensorboard='tensorboard',
    wandb='log',
    mlflow='log',
    sqlalchemy='log',
    alembic='log',
)


def find_config(name: str) -> str:
    """The path of a config, which may be named as in the documentation wherever one works.

    Args:
        name: A file, seen from the working directory; or a config of this package: its path below configs/, such as
            'transnext/upernet_tiny_ade20k', also with 'configs/' before it and '.py' behind it, or its file name
            alone if no other config has the same.

    Returns:
        `name` if it is a file or if there is no such config, else the path of the config.

    Raises:
        InputError: Several configs have that file name.
    """
    if Path(name).is_file():
        return name
    configs = FOLDER / 'configs'
    wanted = name.removeprefix('configs/').removesuffix('.py') + '.py'
    if (configs / wanted).is_file():
        return str((configs / wanted).resolve())
    found = sorted(path for path in configs.rglob('*.py') if path.name == wanted)
    if len(found) > 1:
        names = ', '.join(str(path.relative_to(configs).with_suffix('')) for path in found)
        raise InputError(f'several configs are named {name}: expected one of {names}')
    return str(found[0].resolve()) if found else name


def find_configs(name: str) -> list[str]:
    """The paths of the configs in a folder, by name, or of a single one, as `find_config` finds it.

    Args:
        name: As in `find_config`, or a folder: seen from the working directory, or below configs/, such as
            'convit/ablations'. Configs in its subfolders are not meant.

    Raises:
        InputError: The folder has no configs, or several configs have that file name.
    """
    installed = FOLDER / 'configs' / name.removeprefix('configs/')
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
