"""What this machine's owner wished, held against what is seen of the machine."""
