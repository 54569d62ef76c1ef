"""Hooks of mkdocs: links from a page to files outside docs/ become links into the repository."""

import re


def on_page_markdown(markdown, page, config, files):
    depth = page.file.src_uri.count("/") + 1
    outside = re.compile(r"\]\(" + r"\.\./" * depth + r"(?!\.\.)([^)]+)\)")
    return outside.sub(rf"]({config.repo_url}/blob/main/\1)", markdown)
