"""Files outside of docs/ on the site: README.md, benchmarks, configs, and whatever else a page links to.

Links are written as they work in the repository, relative to the file they stand in. The site gets every file that
they name, Markdown as it is and source code as a page that shows it, and the links lead to where these files are.
"""

import re
from collections.abc import Iterator
from os.path import isfile
from posixpath import dirname, join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

# What follows `](`: a relative path, without its #anchor.
LINK = re.compile(r'(?<=\]\()(?![a-z]+:|[#/])[^\s)#]+')
# Languages of the pages that show source code.
LANGUAGES = {'.py': 'python', '.sh': 'bash', '.yml': 'yaml', '.toml': 'toml', '.txt': 'text'}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files that the pages of docs/ and of the navigation name, and those that these name."""
    root = dirname(config.config_file_path)
    pages = [f'docs/{file.src_uri}' for file in files.documentation_pages()]
    outside = [
        path for path in _pages_of(config.nav) if not isfile(join(config.docs_dir, path)) and isfile(join(root, path))
    ]
    found = set(pages)
    queue = [*pages, *outside]
    while queue:
        path = queue.pop()
        if path not in found:
            found.add(path)
            files.append(_file(path, root, config))
        if path.endswith('.md'):
            queue.extend(set(_links(path, root)) - found)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the links of a page from places in the repository to places on the site."""
    source = page.file.src_uri
    in_repository = source if page.file.generated_by else f'docs/{source}'

    def place(match: re.Match) -> str:
        target = _place(normpath(join(dirname(in_repository), match[0])))
        return relpath(target, dirname(source) or '.') if files.get_file_from_path(target) else match[0]

    return LINK.sub(place, markdown)


def _place(path: str) -> str:
    """Where a file of the repository is on the site."""
    shown = path + '.md' if _language(path) else path
    return shown.removeprefix('docs/')


def _language(path: str) -> str | None:
    """The language of a file that gets a page with its source code."""
    return next((language for suffix, language in LANGUAGES.items() if path.endswith(suffix)), None)


def _file(path: str, root: str, config: MkDocsConfig) -> File:
    """A file of the repository as a file of the site."""
    options = dict(inclusion=InclusionLevel.NOT_IN_NAV)
    if not _language(path):
        return File.generated(config, _place(path), abs_src_path=join(root, path), **options)
    with open(join(root, path), encoding='utf-8') as file:
        code = file.read()
    page = f'---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n````{_language(path)}\n{code}````\n'
    return File.generated(config, _place(path), content=page, **options)


def _links(path: str, root: str) -> Iterator[str]:
    """The files of the repository outside of docs/, or source code in it, that a Markdown file links to."""
    with open(join(root, path), encoding='utf-8') as file:
        for link in LINK.findall(file.read()):
            target = normpath(join(dirname(path), link))
            if isfile(join(root, target)) and (_language(target) or not target.startswith('docs/')):
                yield target


def _pages_of(nav: list | dict | str | None) -> Iterator[str]:
    """The paths in the navigation."""
    if isinstance(nav, str):
        yield nav
    for part in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from _pages_of(part)
