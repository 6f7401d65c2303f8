"""One connection: frames over sockets, protected, authenticated, paced."""
