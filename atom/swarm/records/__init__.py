"""What peers publish of themselves on the DHT, and what can be read from it. Signed and bounded."""
