"""The daemon: one peer as a process, with its state directory, main loop and control API."""
