"""Bring the repository's Markdown files into the site, and write llms.txt.

A page of mkdocs.yml's `nav` that is not in pages/ is a file of the repository. Files that such a
page links to, a picture or a YAML file, come along under the same path, so the links on a page are
the same in the repository and on the site. mkdocs itself reports links that lead nowhere.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation, Section
from mkdocs.structure.pages import Page

REPOSITORY = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"\]\((?!\w+:)([^)#\s]+)")
_CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_SENTENCE = re.compile(r".+?[.!?](?=\s|$)|.+", re.DOTALL)

_navigation: list[Navigation] = []


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of `nav` that lie in the repository, and the files that they link to."""
    pages = [path for path in _paths(config.nav) if files.get_file_from_path(path) is None]
    linked = {target for path in pages for target in _linked_files(path)}
    for path in [*pages, *sorted(linked - set(pages))]:
        if (REPOSITORY / path).is_file():
            source = str(REPOSITORY / path)
            files.append(File.generated(config, path, abs_src_path=source))
    return files


def _paths(nav: Any) -> Iterator[str]:
    """Yield the paths in a tree of lists and mappings."""
    if isinstance(nav, str):
        yield nav
    else:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from _paths(item)


def _linked_files(page: str) -> Iterator[str]:
    """Yield the path in the repository of each file that a page links to."""
    source = REPOSITORY / page
    if not source.is_file():
        return
    for link in _LINK.findall(_CODE.sub("", source.read_text(encoding="utf-8"))):
        target = (source.parent / link).resolve()
        if target.is_file() and target.is_relative_to(REPOSITORY):
            yield target.relative_to(REPOSITORY).as_posix()


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Remember the tree of pages for llms.txt."""
    _navigation[:] = [nav]
    return nav


def on_post_build(config: MkDocsConfig) -> None:
    """Write llms.txt: every page with one sentence about it."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for item in _navigation[0].items:
        if isinstance(item, Section):
            lines += ["", f"## {item.title}", ""]
            lines += [_entry(page) for page in _pages(item)]
        elif isinstance(item, Page):
            lines += ["", _entry(item)]
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _pages(section: Section) -> Iterator[Page]:
    """Yield the pages of a section, those of sections inside it included."""
    for child in section.children:
        if isinstance(child, Section):
            yield from _pages(child)
        elif isinstance(child, Page):
            yield child


def _entry(page: Page) -> str:
    return f"- [{page.title}]({page.url or 'index.html'}): {_first_sentence(page.markdown or '')}"


def _first_sentence(markdown: str) -> str:
    """Return the first sentence of a page's first paragraph, as plain text."""
    for paragraph in re.split(r"\n\s*\n", markdown):
        text = " ".join(line for line in paragraph.splitlines() if not line.startswith("#")).strip()
        if text and not text.startswith(("<!--", "|", "```", "!", ":::")):
            plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "").replace("*", "")
            match = _SENTENCE.match(plain)
            return match.group().strip() if match else plain
    return ""
