"""Prose of HTML pages, as text for models."""

import pytest

from headwisekv.html_prose import book, linked_pages, paragraphs

pytestmark = pytest.mark.unit

PAGE = """<?xml version="1.0" encoding="UTF-8"?>
<html><head><title>A title that is long enough to be a sentence of its own here.</title><style>p { color: red; }</style></head><body>
<ul class="docnav top"><li><a href="next.html">Read the next page of this book when you are done here.</a></li></ul>
<div class="section"><div class="titlepage"><h2 class="title">6.2. The heading of the section is a long one, too.</h2></div>
<div class="para">
    The <code>apt</code> tool is
    a front end &mdash; one of many &mdash; for the&nbsp;library of the same name<sup>[2]</sup>.
</div>
<p>It is called as in the listing below, by any user with rights:</p>
<pre class="screen">$ apt install hello and more of what nobody wants to read in prose.</pre>
<div class="para">See the manual page for what all of these options mean. <div class="url">&rarr; <a href="https://x.example/">https://x.example/</a></div></div>
<table><tr><td>Cells of a table are not prose, even if they are sentences.</td></tr></table>
<ul><li><p>A list of items has prose as well, if its items are sentences.</p></li><li>short one;</li></ul>
<p>Broken <b>markup that never ends<p>does not swallow the paragraphs that come after it in the page.</p>
<p>A dump of 0x00 0x01 0x02 0x03 0x04 0x05 0x06 0x07 is no prose.</p>
<p>Read as Latin-1, a caf\u00c3\u00a9 looks like this and is left out of the text.</p>
<p>A soft hy\u00adphen and a zero-width\u200b space are no part of what people read .</p>
</div><div class="footer"><p>This page was made on a day in spring by a program.</p></div></body></html>
"""


def test_prose_of_a_page():
    assert paragraphs(PAGE) == [
        "The apt tool is a front end \u2014 one of many \u2014 for the library of the same name.",
        "It is called as in the listing below, by any user with rights:",
        "See the manual page for what all of these options mean.",
        "A list of items has prose as well, if its items are sentences.",
        "does not swallow the paragraphs that come after it in the page.",
        "A soft hyphen and a zero-width space are no part of what people read.",
    ]


@pytest.mark.parametrize("html", ["", "no tags at all", "</p></div><p", "<pre>never ends", "<p>&#xD800; &#99999999; &unknown;</p>", "<![CDATA[", "<!-- open"])
def test_odd_pages_give_nothing(html):
    assert paragraphs(html) == []


def test_a_book_is_read_in_the_order_of_its_contents_and_once():
    index = '<a href="b.html">B</a> <a href="a.html#x">A</a> <a href="b.html">B</a> <a href="https://x.example/c.html">C</a> <a href="gone.html">?</a>'
    assert linked_pages(index) == ["b.html", "a.html", "gone.html"]
    pages = {"a.html": "<p>This is the first of the pages by its name, not by the contents.</p>",
             "b.html": "<p>This is the page that the contents of the book name first.</p><p>What is said in two places is kept only once in the text.</p>"}
    pages["a.html"] += "<p>What is said in two places is kept only once in the text.</p>"
    assert book(index, pages.get) == ["This is the page that the contents of the book name first.", "What is said in two places is kept only once in the text.",
                                      "This is the first of the pages by its name, not by the contents."]
