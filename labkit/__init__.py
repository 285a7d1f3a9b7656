"""labkit: the library behind an executable AI-infrastructure lab and study guide.

Importing this package costs nothing: no torch, pandas or plotly is touched until a lab, an analyzer or a figure asks.
"""

__version__ = "0.1.0"
