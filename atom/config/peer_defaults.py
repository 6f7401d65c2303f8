"""What holds where a peer file says nothing, and its default is no value that speaks for itself."""

MEANINGS = {
    "device.memory": "what is free",
    "device.cpu_threads": "as many as PyTorch chooses",
    "device.power": "as the GPU is set",
    "host.memory": "what is free",
    "network.announce": "its own addresses",
    "network.upload": "no limit",
    "network.download": "no limit",
    "schedule.hours": "at all hours",
    "schedule.idle_for": "also while somebody uses the machine",
    "state.directory": "a folder of the run's name in ~/.local/share/atom",
    "data.paths": "as the run file says",
    "data.path": "as the run file says",
    "data.tokenizer": "as the run file says",
    "metrics.port": "served nowhere",
    "log.tensorboard": "not written",
}
"""By key, in words."""
