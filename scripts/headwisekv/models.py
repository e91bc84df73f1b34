"""Models that can be fetched by name: the pin files of models/ that have one."""

from .core import ROOT, Failure
from .pins import read_pins

FOLDER = ROOT / "models"


def pin_files():
    """By name of the model, the default one first."""
    found = {}
    for path in sorted(FOLDER.glob("*PIN"), key=lambda path: (path.name != "PIN", path.name)):
        name = read_pins(path)[0].get("name")
        if name is None or name in found:
            raise Failure(f"{path}: found name {name}, expected one that no other model has")
        found[name] = path
    return found
