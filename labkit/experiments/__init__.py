"""One file per lab. A lab is glue: parameters, prediction, launch, analysis, oracles, figures."""
