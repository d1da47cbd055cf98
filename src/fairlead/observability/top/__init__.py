"""The screen of `fairlead top`: what it computes, how keys change it, how it is drawn. The terminal is `cli/top.py`."""
