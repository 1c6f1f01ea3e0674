"""What `cargo xtask house` counted, in the form of results: house.py GPUWHY RAW."""

import json
import sys

from measure import made, write

write("house", {"made": made("make bench-house"), **json.load(open(sys.argv[2]))})
