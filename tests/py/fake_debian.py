"""A stand-in for apt-get and dpkg-deb: packages are tar files, and the programs are shell scripts in a folder for PATH."""

import io
import json
import os
import tarfile

from headwisekv import debian_books


def prose(package, n):
    """Paragraphs that differ."""
    return [f"The {package} says in its paragraph number {i} that a reader who is patient learns more." for i in range(n)]


def make_package(folder, package, index, n, version="1.0"):
    """A package with two pages of n paragraphs in all beside the one with the contents."""
    texts = prose(package, n)
    pages = {index: '<ul class="toc"><li><a href="two.html">Two</a></li><li><a href="one.html">One</a></li></ul>',
             os.path.join(os.path.dirname(index), "two.html"): "".join(f"<p>{text}</p>" for text in texts[:n // 2]),
             os.path.join(os.path.dirname(index), "one.html"): "".join(f"<p>{text}</p>" for text in texts[n // 2:]),
             "usr/share/doc/elsewhere/one.html": "<p>Pages of other folders are of other languages, so that they are left out.</p>"}
    with tarfile.open(folder / f"{package}_{version}_all.deb", "w") as archive:
        for name, html in pages.items():
            info = tarfile.TarInfo(f"./{name}")
            info.size = len(html.encode())
            archive.addfile(info, io.BytesIO(html.encode()))


def make_tools(folder, archive, lists=True):
    """apt-get gives packages of `archive`, where it has lists of them only after an update if not `lists`; every call goes into calls.txt."""
    folder.mkdir()
    scripts = {
        "apt-get": f"""echo "$@" >> {folder}/calls.txt
[ "$2" != update ] || {{ touch {folder}/lists; exit 0; }}
[ -e {folder}/lists ] || {{ echo "E: Unable to locate package $3"; exit 100; }}
for deb in {archive}/"$3"_*.deb; do [ -e "$deb" ] && cp "$deb" . && exit 0; done
echo "Reading package lists..."
echo "E: Unable to locate package $3"
exit 100
""",
        "dpkg-deb": """case $1 in
    --field) name=${2##*/}; name=${name#*_}; echo "${name%%_*}" ;;
    --fsys-tarfile) cat "$2" ;;
esac
"""}
    for name, text in scripts.items():
        (folder / name).write_text("#!/bin/sh\n" + text)
        (folder / name).chmod(0o755)
    if lists:
        (folder / "lists").touch()
    return folder


def prepare_cache(cache, n=400):
    """The cache as a run of scripts/fetch text leaves it, with a short text."""
    cache.mkdir(parents=True, exist_ok=True)
    path = cache / f"{debian_books.NAME}.txt"
    path.write_text("\n\n".join(prose("book", n)) + "\n")
    record = {"sha256": debian_books.sha256_file(path), "characters": 1, "packages": [{"package": "hwkv-book", "version": "7.5", "sha256": "0" * 64}]}
    (cache / f"{debian_books.NAME}.json").write_text(json.dumps(record))
    return path
