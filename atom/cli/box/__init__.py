"""Commands for this machine and its daemons: control, information, export, diagnosis."""
