"""Compiler: traces a module to a graph, cuts the graph into sub-models and prints them as Python.

ir            programs, sub-models and parameter layouts: the contract with the code that runs them
trace         module → graph (traced: definition of a graph; tracing/: guards against wrong traces)
layers        graph → layers and pieces of layers, at legal cuts
matrix_parts  graph → graph with large matrices split into parts
costs/        graph → bytes and kernels of every operation
profile/      graph → chain with seconds: measured here, or assumed from a table of devices
source        graph and cut → Python source
program       graph and cut → program; program → modules
segment       forward and backward of one sub-model
chain         input of the search for a cut: operations, values and a machine
verify        bit-by-bit comparison of the sub-models with the module
"""
