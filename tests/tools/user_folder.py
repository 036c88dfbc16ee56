"""A folder as a user has it: the configs and the data where README says to unpack them."""

from pathlib import Path

from .running import ROOT


def make_user_folder(folder: Path, workplace: Path) -> Path:
    """Link the configs, and the miniature data of `workplace` at the places of the real data; return the folder."""
    (folder / 'configs').symlink_to(ROOT / 'configs')
    (folder / 'data/ade').mkdir(parents=True)
    for place in ('ade/ADEChallengeData2016', 'coco', 'imagenet'):
        (folder / 'data' / place).symlink_to(workplace / 'data/mini' / Path(place).name)
    return folder
