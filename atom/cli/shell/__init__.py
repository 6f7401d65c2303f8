"""What all commands share: arguments, words, exit codes, bars, signals."""
