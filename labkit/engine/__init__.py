"""The serving engine beside the labs: finding it, installing it, model folders for it."""
