"""From one run directory to ``analysis/{layer1,kernels,waste,sanity}.json``."""
