"""A swarm's page in a browser, from the DHT and the proven chain.

feed    reads the swarm again and again, and keeps its latest state
page    turns that state into HTML, with all texts of peers escaped; chart draws the losses
server  serves the page and the files in static over HTTP, by default to this machine only
"""
