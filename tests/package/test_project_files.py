"""The files around the code: citation, pre-commit, issue templates, changelog."""

import re
from pathlib import Path

import pytest
import yaml

from bioattn_mm.version import __version__

from ..docs.test_commands import unknown

ROOT = Path(__file__).parents[2]
CITATION = yaml.safe_load((ROOT / 'CITATION.cff').read_text())
COLLECTIONS = [
    yaml.safe_load(path.read_text())['Collections'][0] for path in sorted(ROOT.glob('configs/*/metafile.yml'))
]


def test_the_citation_is_of_this_version_and_names_every_paper() -> None:
    # The whole file was checked with cffconvert; these are the keys that the format requires.
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


# The attributes that GitHub knows of each type of field, and of which it must have the first; it shows no form with
# others, or with a label or an ID twice.
INPUT = ('label', 'description', 'placeholder', 'value')
ATTRIBUTES = dict(markdown=('value',), input=INPUT, textarea=(*INPUT, 'render'))


@pytest.mark.parametrize('name', ['bug', 'request'])
def test_issue_forms(name: str) -> None:
    form = yaml.safe_load((ROOT / f'.github/ISSUE_TEMPLATE/{name}.yml').read_text())
    assert {'name', 'description', 'body'} <= set(form) <= {'name', 'description', 'body', 'labels', 'title'}
    for field in form['body']:
        known = ATTRIBUTES[field['type']]
        assert set(field['attributes']) <= set(known) and field['attributes'][known[0]]
        assert set(field) <= {'type', 'id', 'attributes', 'validations'}
        assert set(field.get('validations', {})) <= {'required'}
    fields = [field for field in form['body'] if field['type'] != 'markdown']
    ids = [field['id'] for field in fields]
    labels = [field['attributes']['label'] for field in fields]
    assert all(re.fullmatch(r'[\w-]+', each) for each in ids)
    assert len(set(ids)) == len(set(labels)) == len(fields) >= 3
    required = [field['attributes']['label'] for field in fields if field.get('validations', {}).get('required')]
    assert len(required) >= 2
    if name == 'bug':
        assert any('python -m bioattn_mm.ops' in label for label in required)
    # What the texts name is in the package: pages, tools and their options.
    text = ' '.join(text for field in form['body'] for text in field['attributes'].values())
    for code in re.findall(r'`((?:--|bioattn |tools/|docs/).+?)`', text):
        assert unknown(code) == [] and (not code.endswith('.md') or (ROOT / code).is_file())


def test_the_changelog_has_the_form() -> None:
    text = (ROOT / 'CHANGELOG.md').read_text()
    versions = re.findall(r'^## \[(.+?)\]', text, flags=re.MULTILINE)
    assert versions[0] == 'Unreleased'
    kinds = set(re.findall(r'^### (.+)', text, flags=re.MULTILINE))
    assert kinds <= {'Added', 'Changed', 'Deprecated', 'Removed', 'Fixed', 'Security'}
    assert __version__ in text
