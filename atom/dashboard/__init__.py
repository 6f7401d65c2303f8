"""The swarm in a browser, from the DHT alone.

feed    looks again and again, remembers the losses seen (history)
page    what was seen → HTML, every word of a peer escaped (chart, style, script)
server  the page over HTTP, to this machine
"""
