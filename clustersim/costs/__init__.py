"""What a cluster costs and draws: its bill of switches, cables and optics, and dollars, kWh and CO2 of a time on it."""
