"""Models to train, in plain PyTorch: nothing here knows of Atom."""
