"""Tables in, plotly figures out. `style` holds the one template; a topic has one file of plot functions."""
