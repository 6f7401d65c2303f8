"""Its place is what counts: pytest puts the folder on the path, and the rooms share its samples."""
