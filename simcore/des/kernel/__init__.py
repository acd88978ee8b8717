"""The simulator's compiled core: integer state in arrays, one function per decision."""
