"""Clean prose of HTML pages: whole paragraphs, without headings, navigation, listings and tables."""

import re
import unicodedata
from html.parser import HTMLParser

LEFT_OUT_TAGS = {"head", "script", "style", "table", "pre", "nav", "footer", "svg", "math", "sup", "form", "h1", "h2", "h3", "h4", "h5", "h6"}
LEFT_OUT_CLASSES = {  # of DocBook's, Publican's and Sphinx's pages
    "docnav", "navheader", "navfooter", "toc", "titlepage", "title", "legalnotice", "copyright", "authorgroup", "url", "footnotes", "screen",
    "programlisting", "highlight", "headerlink", "related", "sphinxsidebar", "toctree-wrapper", "footer", "index", "glossary", "mediaobject",
}
BLOCKS = {"p", "div", "section", "article", "main", "body", "blockquote", "ul", "ol", "li", "dl", "dt", "dd", "figure"}
ALONE = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr"}  # have no end tag

LEAST_WORDS = 8
SENTENCE_END = re.compile("[.!?:;\u2026][\"')\\]\u2019\u201d]*$")
PLAIN_WORD = re.compile("[\"'(\\[\u2018\u201c]*[^\\W\\d_]+(?:[-'\u2019][^\\W\\d_]+)*[\"')\\].,;:!?\u2019\u201d\u2026]*")
DAMAGED = re.compile("[\ufffd\x00-\x1f\x7f-\x9f]|\u00c3[\u0080-\u00bf]|\u00e2\u20ac")  # bytes that were read in a wrong encoding
INVISIBLE = str.maketrans("", "", "\u00ad\u200b\u200c\u200d\u2060\ufeff")


class Reader(HTMLParser):
    """Collects the text of blocks; what is left out ends a block too."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.open = []     # (tag, is left out) of every element that has begun
        self.n_left_out = 0
        self.pieces, self.blocks = [], []

    def end_block(self):
        text = " ".join("".join(self.pieces).translate(INVISIBLE).split())
        self.pieces = []
        if text:
            self.blocks.append(text)

    def handle_starttag(self, tag, attrs):
        if tag in ALONE:
            self.handle_data(" ")
            return
        classes = set((dict(attrs).get("class") or "").split())
        left_out = tag in LEFT_OUT_TAGS or bool(classes & LEFT_OUT_CLASSES)
        if tag in BLOCKS or tag in ("pre", "table"):
            self.end_block()
        self.open.append((tag, left_out))
        self.n_left_out += left_out

    def handle_startendtag(self, tag, attrs):
        pass  # <a id="x"/> has no text

    def handle_endtag(self, tag):
        if tag not in (name for name, _ in self.open):
            return
        while self.open:
            name, left_out = self.open.pop()
            self.n_left_out -= left_out
            if name == tag:
                break
        if tag in BLOCKS:
            self.end_block()

    def handle_data(self, data):
        if not self.n_left_out:
            self.pieces.append(data)


def tidy(text):
    """Without the gaps where something was left out."""
    text = re.sub(r" \(\s*\)", "", unicodedata.normalize("NFC", text))
    return re.sub(r"\s+([.,;:!?])(?=\s|$)", r"\1", text)


def is_prose(text):
    words = text.split()
    plain = sum(PLAIN_WORD.fullmatch(word) is not None for word in words)
    return len(words) >= LEAST_WORDS and SENTENCE_END.search(text) is not None and not DAMAGED.search(text) and 3 * plain >= 2 * len(words)


def paragraphs(html):
    """Paragraphs of a page, each one line."""
    reader = Reader()
    reader.feed(html)
    reader.close()
    reader.end_block()
    return [text for text in map(tidy, reader.blocks) if is_prose(text)]


def linked_pages(html):
    """Names of pages in the same folder, in the order a page with contents links them."""
    return list(dict.fromkeys(re.findall(r'href="([\w.+-]+\.html)[#"]', html)))


def book(index, read_page):
    """Paragraphs of all pages that an index links, each once. read_page(name) gives a page's HTML, None where there is none."""
    pages = [html for name in linked_pages(index) if (html := read_page(name)) is not None]
    return list(dict.fromkeys(text for html in pages for text in paragraphs(html)))
