"""`python -m openfleet.compat script.py arguments...`, or `-m module` in place of the script.

`--enable` lets every `python` of this environment `import paddle`, until `--disable`.
"""

import importlib.util
import os
import runpy
import sys
import sysconfig

from . import SITE, for_children, install

USAGE = """usage: python -m openfleet.compat script.py [arguments...]
       python -m openfleet.compat -m module [arguments...]
       python -m openfleet.compat --enable     every `python` of this environment can `import paddle`
       python -m openfleet.compat --disable    undo it"""
# A line of a .pth file in site-packages is added to `sys.path` when Python starts.
SWITCH = os.path.join(sysconfig.get_paths()["purelib"], "openfleet-paddle.pth")


def enable() -> None:
    """Lets every Python of this environment `import paddle`."""
    found = importlib.util.find_spec("paddle")
    if found is not None and found.origin is not None and not found.origin.startswith(os.path.dirname(SITE)):
        sys.exit(f"error: PaddlePaddle itself is installed here, at `{found.origin}`\n\nhint: use another environment")
    with open(SWITCH, "w") as file:
        file.write(f"{SITE}\n")
    print(f"`import paddle` finds OpenFleet's compatibility package from now on (`{SWITCH}`)")


def disable() -> None:
    """Undoes `enable`."""
    if os.path.exists(SWITCH):
        os.remove(SWITCH)
    print("`import paddle` does not find OpenFleet's compatibility package any more")


words = sys.argv[1:]
is_module = words[:1] == ["-m"]
if words in (["--enable"], ["--disable"]):
    enable() if words == ["--enable"] else disable()
    sys.exit()
if len(words) < 1 + is_module or words[0] in ("-h", "--help"):
    sys.exit(USAGE)
install()
for_children()
sys.argv = words[is_module:]
if is_module:
    sys.path[0] = os.getcwd()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
