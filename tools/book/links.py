"""Checks the links of a built site: each leads to a file of it, and to a place that this file has."""

import html
import os
import re
import sys
import urllib.parse


class Page:
    """What a page links to, loads and offers as a place. (A regular expression reads half a million tags in the time of a parser's
    twentieth; a script or a code block has its < as &lt;.)"""

    def __init__(self, path):
        self.links, self.loads, self.places = set(), set(), {""}
        with open(path, encoding="utf-8") as file:
            text = re.sub(r"<script\b[^>]*>.*?</script>", lambda script: script[0].split(">")[0] + ">", file.read(), flags=re.S)
        for match in re.finditer(r"<(\w+)((?:\s+[\w:-]+(?:=(?:\"[^\"]*\"|'[^']*'|[^\s>]+))?)*)\s*/?>", text):
            tag, rest = match.groups()
            attrs = {name: html.unescape(value.strip("\"'")) for name, value in re.findall(r"([\w:-]+)=(\"[^\"]*\"|'[^']*'|[^\s>]+)", rest)}
            self.places.update(attrs[key] for key in ("id", "name") if key in attrs)
            if tag == "a" and "href" in attrs:
                self.links.add(attrs["href"])
            elif tag in ("script", "img", "iframe", "object") or (tag == "link" and attrs.get("rel") in ("stylesheet", "icon")):
                self.loads.add(attrs.get("src") or attrs.get("href") or "")


def check_links(site):
    """Prints each link that leads nowhere, and each thing that a page would fetch from outside, and exits if there is one."""
    paths = [os.path.join(folder, name) for folder, _, names in os.walk(site) for name in names if name.endswith(".html")]
    pages = {path: Page(path) for path in paths}
    dead = 0
    for path, page in sorted(pages.items()):
        for link in sorted(page.links | page.loads):
            url = urllib.parse.urlsplit(link)
            target = os.path.normpath(os.path.join(os.path.dirname(path), urllib.parse.unquote(url.path))) if url.path else path
            if url.scheme in ("http", "https"):
                problem = "is fetched from outside" if link in page.loads else ""
            elif url.scheme == "data":
                problem = ""
            elif not os.path.isfile(target):
                problem = "leads nowhere"
            else:
                place = urllib.parse.unquote(url.fragment)
                problem = "" if target not in pages or place in pages[target].places else f"leads to a page without the place {place}"
            if problem:
                print(f"book: {os.path.relpath(path, site)}: {link} {problem}", file=sys.stderr)
                dead += 1
    if dead:
        sys.exit(f"book: {dead} dead links")
