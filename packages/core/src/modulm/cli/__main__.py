"""`python -m modulm.cli`: the command line for an interpreter whose scripts are not on the path."""

import sys

from modulm.cli import main

sys.exit(main())
