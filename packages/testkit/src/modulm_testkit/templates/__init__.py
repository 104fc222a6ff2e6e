"""Templates of plugin packages: what `modulm plugins new KIND NAME` writes.

Core finds `TEMPLATES` through the entry-point group `modulm.templates` and knows no more than its two attributes. Look
next at `kinds.py` (what there is), `names.py` (what a NAME becomes) and `package.py` (filling in and writing); the
files themselves are in `files/`, one folder per kind beside those that all packages share.
"""

from modulm_testkit.templates.package import Templates

TEMPLATES = Templates()
