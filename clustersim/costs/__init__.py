"""Cost and energy of a cluster: its bill of switches, cables and optics, and dollars, kWh and CO2 per time."""
