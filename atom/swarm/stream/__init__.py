"""One connection: frames over an encrypted, authenticated, rate-limited socket."""
