"""H1a, H1b and the compound verdict from analysed runs and a protocol."""
