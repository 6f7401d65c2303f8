"""The compiler: a module becomes a graph, the graph is cut, what is cut becomes readable source.

ir         what a program is: the contract with whoever runs it
trace      module → graph (traced: what a graph is; tracing/: how its traps are closed)
layers     graph → layers and pieces of layers, at legal cuts
costs/     graph → bytes and kernels of every operation
profile/   graph → chain with seconds: measured here, or assumed for a device of a table
source     graph and cut → Python source
program    graph and cut → program; source → modules (segment: how one is run, and its backward)
chain      what placement plans with: operations, values, a machine
verify     sub-models run plainly, and compared with the module bit by bit
"""
