"""All constants of steps, estimated together on published steps."""
