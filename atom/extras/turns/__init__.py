"""Several runs on one box: their daemons take turns on its device, without a server."""
