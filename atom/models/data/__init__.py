"""Text → tokens → batches, the same on every peer. Imports with torch alone."""
