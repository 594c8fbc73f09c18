import sys

from astune.support.resources import tutorial_dir

sys.path.insert(0, str(tutorial_dir() / "math_agent"))
