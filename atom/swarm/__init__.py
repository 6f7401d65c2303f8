"""Peers: who is there, what they agreed on, how tensors travel. Sees only named host tensors."""
