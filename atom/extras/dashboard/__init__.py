"""The swarm in a browser, from the DHT alone.

feed    looks again and again, remembers the losses seen (history), reads the certified chain
page    what was seen → HTML, every word of a peer escaped (tables, chart)
server  the page over HTTP, to this machine, with what lies in static
"""
