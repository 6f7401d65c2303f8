"""Peers: who is there, what they agreed on, and how tensors travel. Sees only named host tensors."""
