"""The files around the code: citation, pre-commit."""

import re
from pathlib import Path

import yaml

from bioattn_mm.version import __version__

ROOT = Path(__file__).parents[2]
CITATION = yaml.safe_load((ROOT / 'CITATION.cff').read_text())
COLLECTIONS = [
    yaml.safe_load(path.read_text())['Collections'][0] for path in sorted(ROOT.glob('configs/*/metafile.yml'))
]


def test_the_citation_is_of_this_version_and_names_every_paper() -> None:
    assert {'cff-version', 'message', 'title', 'authors'} <= set(CITATION)
    assert CITATION['version'] == __version__
    papers = {reference['title']: reference['url'] for reference in CITATION['references']}
    systems = [entry['Paper'] for entry in COLLECTIONS if entry['Name'] != 'Baselines']
    assert papers == {paper['Title']: paper['URL'] for paper in systems}
    for reference in CITATION['references']:
        assert {'type', 'authors', 'year'} <= set(reference)
        first, others = reference['authors'][0]['family-names'], len(reference['authors']) > 1
        (named,) = re.findall(rf'\[([^\]]+)\]\({reference["url"]}\)', (ROOT / 'README.md').read_text())
        conference = reference['conference']['name']
        assert named == f'{first}{" et al." if others else ""}, {conference}'


def test_pre_commit_has_the_versions_of_make_lint() -> None:
    pins = dict(line.split('==') for line in (ROOT / 'requirements/lint.txt').read_text().split())
    revisions = {}
    for repository in yaml.safe_load((ROOT / '.pre-commit-config.yaml').read_text())['repos']:
        for hook in repository['hooks']:
            revisions[hook['id'].removesuffix('-check').removesuffix('-format')] = repository['rev'].removeprefix('v')
    assert revisions == dict(ruff=pins['ruff'], clang=pins['clang-format'])
