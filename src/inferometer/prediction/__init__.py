"""From a study to its predicted figures."""
