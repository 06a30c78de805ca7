"""Every fault that is promised to come to something, made on purpose: `table.py` says which test holds which."""
