"""The page as a tree: what it holds, and what is wrong with it."""
import collections
import html.parser
import re

VOID = {"meta", "br", "hr", "img", "input", "link", "base"}
SPACE = re.compile(r"[ \t\r\n\u00a0]+")


def plain(text):
    return SPACE.sub(" ", text).strip()


class Chart:
    def __init__(self, name):
        self.name, self.title, self.description = name, "", ""
        self.bars = []     # of each bar its parts' widths, in %
        self.heights = []  # of each line its marks' heights above the axis, in pixels


class Page(html.parser.HTMLParser):
    HEIGHT = 232

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open, self.faults, self.tags = [], [], set()
        self.ids, self.refers, self.links = set(), [], []
        self.texts = collections.defaultdict(list)
        self.tables, self.charts = {}, {}
        self.chart = self.row = None
        self.bar_at = None

    def heading(self, name):
        return self.charts[name].title

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        found = dict(attrs)
        if len(found) != len(attrs):
            self.faults.append(f"an attribute twice in <{tag}>")
        self.links += [(tag, key, value) for key, value in attrs
                       if key.startswith("on") or key in ("src", "href", "xlink:href", "srcset", "action", "data")]
        self.refers += found.get("aria-labelledby", "").split()
        if "id" in found:
            if found["id"] in self.ids:
                self.faults.append(f"id {found['id']} twice")
            self.ids.add(found["id"])
        self.start_chart(tag, found)
        if tag == "table":
            self.tables[found["id"]] = []
        if tag == "tr":
            self.row = []
        if tag not in VOID:
            self.open.append((tag, found.get("id", ""), []))

    def start_chart(self, tag, found):
        if tag == "svg" and found.get("aria-labelledby", "").endswith("-d"):
            self.chart = Chart(found["aria-labelledby"].split("-t ")[0])
            self.charts[self.chart.name] = self.chart
            self.bar_at = None
        kind = found.get("class", "")
        if self.chart and tag == "rect" and kind.startswith("part"):
            if found["y"] != self.bar_at:
                self.chart.bars.append([])
                self.bar_at = found["y"]
            self.chart.bars[-1].append(float(found["width"].rstrip("%")))
        if self.chart and tag == "g" and kind.startswith("series"):
            self.chart.heights.append([])
        if self.chart and tag == "circle" and kind == "mark":
            self.chart.heights[-1].append(self.HEIGHT - float(found["cy"]))

    def handle_endtag(self, tag):
        if not self.open or self.open[-1][0] != tag:
            self.faults.append(f"</{tag}> at {self.getpos()} closes {self.open[-1][0] if self.open else 'nothing'}")
            return
        _, name, parts = self.open.pop()
        text = plain("".join(parts))
        self.texts[tag].append(text)
        if self.chart and name == self.chart.name + "-t":
            self.chart.title = text
        if self.chart and name == self.chart.name + "-d":
            self.chart.description = text
        if tag in ("th", "td"):
            self.row.append(text)
        if tag == "tr":
            list(self.tables.values())[-1].append(self.row)
        if tag == "div" and self.chart:
            self.chart.heights = [line for line in self.chart.heights if line]
            self.chart = None

    def handle_data(self, data):
        for _, _, parts in self.open:
            parts.append(data)
        if not self.open and data.strip():
            self.faults.append(f"text outside: {data.strip()[:40]}")

    def unknown_decl(self, data):
        self.faults.append(f"a declaration: {data[:40]}")


def parse(text):
    page = Page()
    page.feed(text)
    page.close()
    page.faults += [f"<{tag}> stays open" for tag, _, _ in page.open]
    page.faults += [f"no element {name}" for name in page.refers if name not in page.ids]
    return page


def outside(page, text):
    """Whatever the page would fetch or run."""
    found = [str(link) for link in page.links] + [tag for tag in ("script", "link", "iframe", "object", "embed") if tag in page.tags]
    style = text[text.index("<style>"):text.index("</style>")]
    found += re.findall(r"@import[^;]*|url\((?!#)[^)]*\)|@font-face", style)
    found += re.findall(r"(?:https?|ftp|file|data|javascript):[^\s<]*", text)
    return found
