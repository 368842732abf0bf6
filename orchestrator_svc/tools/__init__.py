"""Tools: who owns which (`table`, pure), and the gateway-owned ones, one file per tool."""
