"""Signed, bounded records that peers publish on the DHT, and views computed from them."""
