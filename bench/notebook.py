"""Runs the code of a notebook from top to bottom, as its reader would: notebook.py FILE."""

import json
import sys

with open(sys.argv[1]) as file:
    cells = json.load(file)["cells"]
names = {}
for cell in cells:
    if cell["cell_type"] == "code":
        exec(compile("".join(cell["source"]), f"{sys.argv[1]}, {cell['id']}", "exec"), names)
