"""The compiler: a module becomes a graph, the graph is cut into layers, layers become sub-models.

ir        what a program is: the contract with whoever runs it
trace     module → graph (guards, effects, reading, digest, traced)
layers    graph → layers, at legal cuts
cost      layers → bytes and operations; profile → seconds
partition costs and a budget → cut (pure)
codegen   graph and cut → Python source (printer, expressions, composite, contents, python_text)
program   all of it in one call; source → modules
reference sub-models run plainly; verify compares them with the module, bit by bit
"""
