"""The serving engine of the serving labs: finding it, installing it, and the model folders it is started with."""
