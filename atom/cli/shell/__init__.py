"""Parts that all commands share: options, terminal output, exit codes, progress bars, signals."""
