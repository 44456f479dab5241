"""Constants of a step's time: their uncertainty on a machine, their effect on the step, their calibration by measured steps."""
