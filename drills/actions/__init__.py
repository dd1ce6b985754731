"""The action items of a reports folder: `actions.yaml`, people's file, which the runs carry forward.

items.py    what an item is, and what is wrong with one that is none
store.py    reading and writing the file: comments, order and people's words stay, two writers wait for each other
follow.py   a judged run → which items it opens, sees again and proves done
commands.py what `drill actions` does
"""
