"""This box and its daemons: control, information, export, examination."""
