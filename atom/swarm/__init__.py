"""Peers: their records, their decisions, and how they exchange named tensors in host memory."""
