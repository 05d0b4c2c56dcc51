"""The figures of the page on benchmarks, drawn from the stored results: ``python -m benchmarks.pictures``.

- ``charts``: rows of bars, and curves or dots, as data; one function draws them.
- ``training``, ``network``, ``planning``, ``faults``: what the figure of each result shows.
- ``catalog``: every figure by the name of its file.
"""
