"""Text of other programs → specs of ours."""
