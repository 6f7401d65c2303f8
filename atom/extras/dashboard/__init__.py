"""The swarm in a browser, from the DHT and the chain that its peers prove.

feed    looks again and again, and keeps what was seen last
page    what was seen → HTML, every word of a peer escaped; chart draws the losses
server  the page over HTTP, to this machine, with what lies in static
"""
