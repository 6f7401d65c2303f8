"""Is a program the model? What it means, and whether it agrees bit by bit."""
