"""The command `trec-qcomm TOOL`, or `python -m trec_qcomm TOOL`."""

import sys

from trec_qcomm.lab.tools import main

if __name__ == "__main__":
    sys.exit(main())
